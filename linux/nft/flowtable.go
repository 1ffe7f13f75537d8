// SPDX-License-Identifier: Apache-2.0

package nft

import "github.com/tandem-proxy/tandem/linux/netlink"

// A flowtable forwards packets of connections that it knows before the stack sees
// them. Ours is in a table of its own, for both families:
//
//	table inet tandem-offload {
//	  flowtable services { hook ingress priority 0; devices = { ... }; counter }
//	  chain forward { type filter hook forward priority 0; ct status dnat flow add @services counter }
//	}
//
// The kernel looks a connection up for each packet: one that was deleted from
// connection tracking goes the long way at once, and one whose flowtable goes does
// so with its next packet. Only TCP and UDP are taken, and TCP once it is
// established in both directions.
const (
	offloadTable = "tandem-offload"
	flowtable    = "services"
	offloadChain = "forward"
)

// familyInet is NFPROTO_INET.
const familyInet = 1

// Messages and attributes of flowtables.
const (
	msgNewFlowtable = 22
	msgGetFlowtable = 23

	attrFlowtableName  = 2
	attrFlowtableHook  = 3
	attrFlowtableFlags = 7

	attrFlowtableHookPoint    = 1 // in attrFlowtableHook
	attrFlowtableHookPriority = 2
	attrFlowtableDevices      = 3
	attrFlowtableDevice       = 1 // in attrFlowtableDevices

	flowtableCounter = 2 // NFT_FLOWTABLE_COUNTER: connections' counters stay exact
)

// maxDevices is how many devices go into one message; the kernel takes 256
// (NFT_NETDEVICE_MAX).
const maxDevices = 200

// offloadComment is that of our table.
func offloadComment() []byte {
	var n notes
	n.comment(Owner + " (offload 1)")
	return n
}

// offloadBatch writes a transaction.
type offloadBatch struct{ plainBatch }

// create makes the table with a flowtable of no device.
func (b *offloadBatch) create() {
	b.message(msgNewTable, netlink.FlagCreate|netlink.FlagExclusive)
	b.Bytes(attrTableUserdata, offloadComment())
	b.End()
	b.addDevices(nil)
	b.chain(offloadChain, Hook{Type: "filter", Point: Forward})
	b.rule(offloadChain, func() {
		CtDNAT{}.encode(&b.encoder)
		b.expr("flow_offload", func() { b.Text(1, flowtable) })
		b.expr("counter", func() {})
	})
}

// addDevices adds devices to the flowtable, and makes it if there is none.
func (b *offloadBatch) addDevices(names []string) {
	b.message(msgNewFlowtable, netlink.FlagCreate)
	b.Text(attrFlowtableName, flowtable)
	hook := b.Nest(attrFlowtableHook)
	b.Uint32(attrFlowtableHookPoint, 0) // NF_NETDEV_INGRESS
	b.Uint32(attrFlowtableHookPriority, 0)
	if len(names) > 0 {
		devices := b.Nest(attrFlowtableDevices)
		for _, name := range names {
			b.Text(attrFlowtableDevice, name)
		}
		b.NestEnd(devices)
	}
	b.NestEnd(hook)
	b.Uint32(attrFlowtableFlags, flowtableCounter)
	b.End()
}
