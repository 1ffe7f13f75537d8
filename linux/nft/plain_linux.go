// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

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

// commit sends a transaction and returns its result.
func (b *plainBatch) commit(ctx context.Context, sock *netlink.Socket) error {
	text, last := b.end()
	sock.Reserve(b.n)
	if err := sock.Send(ctx, text); err != nil {
		return err
	}
	for {
		answer, err := sock.Receive()
		if err != nil {
			return err
		}
		for m, err := range netlink.Messages(answer) {
			if err != nil {
				return err
			}
			if errno, ok := m.Errno(); ok && m.Type == netlink.TypeError && (errno != 0 || m.Seq == last) {
				if errno != 0 {
					return errors.Join(fmt.Errorf("table %s: %w", b.table, unix.Errno(errno)), sock.Drain(ctx))
				}
				return nil
			}
		}
	}
}

// KeepTables notes which of some tables are there, and returns a function that deletes
// those that have come since and hold nothing: the iptables command of nftables makes
// the tables that it looks at, and leaves them.
func KeepTables(ctx context.Context, f model.Family, names ...string) (deleteNew func(context.Context) error, err error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	family := netlink.FamilyOf(f)
	var absent []string
	for _, name := range names {
		err := request(ctx, sock, msgGetTable, 0, family, func(w *netlink.Writer) { w.Text(attrTable, name) }, func(netlink.Message) error { return nil })
		if errors.Is(err, unix.ENOENT) {
			absent = append(absent, name)
		} else if err != nil {
			return nil, errors.Join(fmt.Errorf("nftables: table %s: %w", name, err), sock.Close())
		}
	}
	return func(ctx context.Context) error {
		return errors.Join(deleteBare(ctx, sock, family, absent), sock.Close())
	}, nil
}

// DeleteBare deletes those of some tables that hold nothing but chains of the kernel
// without rules, by which every packet is accepted, in the network namespace of the
// calling thread. iptables-nft makes such tables again when it needs them.
func DeleteBare(ctx context.Context, f model.Family, names ...string) error {
	sock, err := openSocket()
	if err != nil {
		return err
	}
	return errors.Join(deleteBare(ctx, sock, netlink.FamilyOf(f), names), sock.Close())
}

func deleteBare(ctx context.Context, sock *netlink.Socket, family byte, names []string) error {
	if len(names) == 0 {
		return nil
	}
	var chains map[string][]string // by table
	err := dataplane.RetryInterrupted(func() error {
		chains = map[string][]string{}
		return request(ctx, sock, msgGetChain, netlink.FlagDump, family, func(*netlink.Writer) {}, func(m netlink.Message) error {
			if c, hooked := baseChain(m); hooked && !c.Drop && len(chains[c.Table]) < maxBaseChains { // one left out keeps the table
				chains[c.Table] = append(chains[c.Table], c.Name)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("nftables: list chains: %w", err)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, deleteTable(ctx, sock, family, name, chains[name]))
	}
	return errors.Join(errs...)
}

// deleteTable deletes a table and its chains in one transaction, if it holds nothing
// else and they have no rules (NLM_F_NONREC); else nothing.
func deleteTable(ctx context.Context, sock *netlink.Socket, family byte, name string, chains []string) error {
	const nonRecursive = 0x100 // NLM_F_NONREC (netlink.h)
	b := newPlainBatch(sock.Next(), family, name)
	for _, chain := range chains {
		b.message(msgDelChain, nonRecursive)
		b.Text(attrChainName, chain)
		b.End()
	}
	b.message(msgDelTable, nonRecursive)
	b.End()
	err := b.commit(ctx, sock)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nftables: delete empty table: %w", err)
	}
	return nil
}
