// SPDX-License-Identifier: Apache-2.0

// Package nftables programs Services into two nftables tables, "ip tandem" and
// "ip6 tandem", over netlink: it needs no nft binary.
//
//	prerouting, output
//	  source-ranges, allowed: drop clients outside of source ranges
//	  set the masquerade bit on packets that are not from a pod of this node
//	  vips-pod, vips-host: exceptions to vips for pods of this node, and for the node itself
//	  vips: address . protocol . port ─────▶ drop, reject or pick-N
//	  local address? nodeports: protocol . port ──────▶ or nodepick-N
//	  cluster-ips: reject                                  │
//	                                                       ▼
//	pick-N: number := random mod N
//	        slots: address . protocol . port . number ─▶ endpoint (DNAT)
//	        no such slot: the first one, else drop
//	filter-forward
//	  endpoint-ports: drop answers of endpoints that conntrack finds invalid
//	filter-forward, filter-output
//	  service-cidrs: drop packets to unallocated cluster IPs
//	postrouting
//	  masquerade packets with the bit, and hairpins
//
// The number of chains hardly depends on the number of Services: there is one for each
// size of a pool, and for each affinity timeout; only round robin needs one for each port.
// A Service is a handful of elements in shared maps, and all ports with the same number of
// endpoints share a pick chain, since "numgen ... mod N" needs a constant N.
// So replacing an endpoint writes one element, whatever the size of the cluster. With a
// chain, a rule or an anonymous set for each Service, the kernel would walk all of
// them at every change. Ports with ClientIP affinity share one map of all clients
// (affinity.go).
//
// All base chains but the filters are of type nat, which see only the first packet of
// a connection. They may drop and reject since Linux 5.9. The filters see every
// packet; filter-output exists only if ServiceCIDRs are known.
//
// The origin of a packet is decided once, in prerouting or output, and kept in the
// masquerade bit of its mark: set for all but this node's pods. A pick chain
// leaves it, sets it or clears it ("as is", -snat, -nosnat). Packets to no
// Service continue with the bit clear.
//
// The language of tables, and the driver that keeps them in the kernel, is
// linux/nft. The files:
//
//	layout.go              sets, maps and chains; the objects of a table without Services
//	answer.go, affinity.go the action of each origin; the chains that choose an endpoint
//	compile.go             ports to objects (Compiler)
//	driver_linux.go        Tandem's tables in the kernel (Driver); whether it supports them
//	                       (Probe)
//	offload_linux.go       the flowtable of --accelerate
//	mode*.go               the mode; its plan; connections by frontend and endpoint, for top
package nftables
