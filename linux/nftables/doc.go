// SPDX-License-Identifier: Apache-2.0

// Package nftables programs Services into two nftables tables, "ip tandem" and
// "ip6 tandem", over netlink: it needs no nft binary.
//
//	prerouting, output
//	  guarded, allowed: drop clients outside of source ranges
//	  masquerade bit := not a pod of this node
//	  vips-pod, vips-host: where an origin's answer is not the common one
//	  vips: address . protocol . port ─────▶ drop, reject or pick-N
//	  local address? nodeports: protocol . port ──────▶ or nodepick-N
//	  cluster-ips: reject                                  │
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
// The language of tables, and the driver that keeps them in the kernel, is
// linux/nft. The parts:
//
//	layout.go              the sets, maps and chains that there are
//	base.go                what is there before any Service
//	compile.go             ports to objects (Compiler)
//	answer.go, affinity.go what each origin gets; the chains that choose an endpoint
//	driver_linux.go        our tables in the kernel; whether it can have them (Probe)
//	mode.go                the mode
package nftables
