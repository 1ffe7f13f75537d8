// Package nftables programs Services into two nftables tables, "ip tandem" and
// "ip6 tandem", over netlink: it needs no nft binary.
//
//	prerouting ─┬▶ from-pod ─────┐  vips-pod, vips-host: where an origin's answer
//	            └▶ from-outside ─┤                      is not the common one
//	output ─────┬▶ from-pod      ├▶ vips: address . protocol . port ─▶ verdict
//	            └▶ from-host ────┘        │            drop, refuse or pick-N
//	                                      ▼
//	pick-N: number := random mod N
//	        slots: address . protocol . port . number ─▶ endpoint   (DNAT)
//	postrouting: masquerade what is marked, and what goes back to its sender
//
// The number of chains does not depend on the number of Services. A Service is
// a handful of elements in maps that all share, and a pick chain is shared by
// all ports with that many endpoints: "numgen ... mod N" wants a constant N.
// Replacing an endpoint therefore is one element written, whatever else there
// is. A chain, a rule or an anonymous set for each Service would make the
// kernel walk all of them at every change. Only ports with ClientIP affinity
// have chains of their own.
//
// Everything is in chains of type nat, which see only the first packet of a
// connection. They may drop and reject since Linux 5.9.
//
// Where a packet is from is decided once, at the top. The masquerade bit of its
// mark carries the answer on: it is set for all but this node's pods, and a
// pick chain leaves it, sets it or clears it ("as is", -snat, -nosnat).
//
// The parts:
//
//	layout.go, rule.go  what there is: sets and maps; the statements of rules
//	compile.go          ports to objects (Compiler)
//	text.go             objects to an nft script (Script)
//	sim.go              objects and a packet to an outcome (Sim)
//	wire.go, encode.go  objects to netlink messages (batch.go puts them in order)
//	observe.go          netlink messages back to objects
//	driver_linux.go     the socket (Driver)
package nftables
