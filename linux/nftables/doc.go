// Package nftables programs Services into two nftables tables, "ip tandem" and
// "ip6 tandem", over netlink: it needs no nft binary.
//
//	prerouting, output
//	  guarded, allowed: drop clients outside of source ranges
//	  masquerade bit := not a pod of this node
//	  vips-pod, vips-host: where an origin's answer is not the common one
//	  vips: address . protocol . port ─────▶ drop, refuse or pick-N
//	  local address? nodeports: protocol . port ──────▶ or nodepick-N
//	  cluster-ips: refuse                                  │
//	                                                       ▼
//	pick-N: number := random mod N
//	        slots: address . protocol . port . number ─▶ endpoint (DNAT)
//	        none under this number: the first slot, else drop
//	filter-forward
//	  endpoint-ports: drop answers of endpoints that conntrack finds invalid
//	filter-forward, filter-output
//	  service-cidrs: drop what is in a range of cluster IPs, and none of them
//	postrouting
//	  masquerade what has the bit, and (hairpin) what goes back to its sender
//
// The number of chains does not depend on the number of Services. A Service is
// a handful of elements in maps that all share, and a pick chain is shared by
// all ports with that many endpoints: "numgen ... mod N" wants a constant N.
// Replacing an endpoint therefore is one element written, whatever else there
// is. A chain, a rule or an anonymous set for each Service would make the
// kernel walk all of them at every change. Ports with ClientIP affinity
// share one map of all clients (affinity.go).
//
// All but the filters is in chains of type nat, which see only the first packet of
// a connection. They may drop and reject since Linux 5.9. The filters see every
// packet; that on output is there only where ranges are known.
//
// Where a packet is from is decided once, at the top, and kept in the
// masquerade bit of its mark: set for all but this node's pods. A pick chain
// leaves it, sets it or clears it ("as is", -snat, -nosnat). Packets that no
// Service is for go on with the bit clear.
//
// The parts:
//
//	layout.go, rule.go, base.go  what there is: sets and maps, statements, chains
//	key.go, interval.go          objects: their names and contents; ranges of addresses
//	compile.go, answer.go        ports to objects (Compiler); what each origin gets
//	pick.go, affinity.go         the chains that choose an endpoint; affinity
//	text.go, text_rule.go        objects to an nft script (Script)
//	sim.go, sim_hook.go,         objects and a packet to an outcome (Sim)
//	  sim_rule.go
//	message.go, encode.go,       rules to netlink (linux/netlink)
//	  expression.go
//	element.go, element_parse.go elements to netlink, and back
//	shape.go, digest.go          sets and chains in few numbers, to compare with the kernel's
//	userdata.go                  notes that the kernel keeps for us: comments, digests
//	batch.go, declare.go         ops to one transaction, in an order that works
//	observe.go                   netlink back to objects
//	driver_linux.go,             the kernel (Driver): what is
//	  read_linux.go              written, and read back
//	owner_linux.go               which tables are ours; Remove
//	absent_linux.go              a kernel without nf_tables
//	guest.go                     what the userspace mode needs for tables of its own
//	probe_linux.go, mode.go      whether this kernel can do it; the mode
package nftables
