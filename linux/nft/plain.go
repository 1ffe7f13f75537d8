// SPDX-License-Identifier: Apache-2.0

package nft

import "github.com/tandem-proxy/tandem/linux/netlink"

// plainBatch writes a transaction about one small table that is no Table: it is made and
// deleted as a whole.
type plainBatch struct {
	encoder
	netfilter byte // family, such as familyInet
	table     string
	seq       uint32 // of the first message
	n         uint32
}

func newPlainBatch(seq uint32, family byte, table string) plainBatch {
	b := plainBatch{encoder: encoder{Writer: &netlink.Writer{}}, netfilter: family, table: table, seq: seq}
	b.Begin(batchBegin, 0, b.take(), 0, subsystem)
	b.End()
	return b
}

func (b *plainBatch) take() uint32 {
	b.n++
	return b.seq + b.n - 1
}

func (b *plainBatch) message(kind, flags uint16) {
	b.Begin(subsystem<<8|kind, flags, b.take(), b.netfilter, 0)
	b.Text(attrTable, b.table)
}

// chain makes a chain at a hook, whose policy is to accept.
func (b *plainBatch) chain(name string, h Hook) {
	b.message(msgNewChain, netlink.FlagCreate|netlink.FlagExclusive)
	b.Text(attrChainName, name)
	at := b.Nest(attrChainHook)
	b.Uint32(attrHookPoint, uint32(h.Point))
	b.Uint32(attrHookPriority, uint32(h.Priority))
	b.NestEnd(at)
	b.Uint32(attrChainPolicy, PolicyAccept)
	b.Text(attrChainType, h.Type)
	b.End()
}

// rule adds a rule whose expressions fill writes.
func (b *plainBatch) rule(chain string, fill func()) {
	b.message(msgNewRule, netlink.FlagCreate)
	b.Text(attrRuleChain, chain)
	at := b.Nest(attrRuleExpressions)
	fill()
	b.NestEnd(at)
	b.End()
}

// remove deletes the table.
func (b *plainBatch) remove() {
	b.message(msgDelTable, 0)
	b.End()
}

// end closes the transaction and returns it, with the number of the message that is
// acknowledged.
func (b *plainBatch) end() (text []byte, last uint32) {
	b.Acknowledge()
	last = b.seq + b.n - 1
	b.Begin(batchEnd, 0, b.take(), 0, subsystem)
	b.End()
	return b.Buf, last
}
