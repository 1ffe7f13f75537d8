// SPDX-License-Identifier: Apache-2.0

// Package userspace is the userspace mode on Linux: relays (core/relay) carry
// the connections, and rules of the nat table bring them there, in the chains
// that the mode has had since Kubernetes 1.0:
//
//	PREROUTING ─▶ KUBE-PORTALS-IN                OUTPUT ─▶ KUBE-PORTALS-OUT
//	  KUBE-PORTALS-GUARD      outside of source ranges: drop
//	  KUBE-PORTALS-POD        where this node's pods get another answer
//	  KUBE-PORTALS-CONTAINER, KUBE-PORTALS-HOST     address, protocol, port ─▶ relay
//	  KUBE-PORTALS-CLOSED     other ports of cluster IPs: reject
//	  KUBE-NODEPORT-POD, -CONTAINER, -HOST          the same for node ports
//	  behind the rules of all others: KUBE-PORTALS-UNALLOCATED drops the rest of ServiceCIDRs
//	                             │
//	                             ▼
//	         DNAT to 169.254.84.1:port  (the relay address, on lo)  ─▶ relay ─▶ endpoint
//
// Relays listen on an address that is for nothing else, the relay address: their
// ports conflict with none, no client outside of this host can reach one but through
// its Service, and it is there whatever addresses the node gets or loses.
// REDIRECT will not do: it drops what comes in by an interface without an
// address, as those of many pods are.
//
// Where iptables is not installed or does not work, the same chains are in two
// tables of nftables, "ip tandem-userspace" and "ip6 tandem-userspace", written
// over netlink by linux/nft. There an entry is an element of the map of its
// chain, and a packet is looked up once, however many there are. What an earlier
// run has left in the other kind of table goes as soon as the rules are in place.
//
// What the rules decide is exact: source ranges, rejects, drops and who is a
// pod. But they are about TCP, UDP and SCTP: a ping to a cluster IP, or to one that
// there is not, goes its way. And relays dial like anybody, so that an endpoint
// inside a ServiceCIDR is not reached. Only the source address is lost: endpoints
// see the node. When the proxy is down everything is rejected; when it is back it
// finds its rules and listens on the same ports again. Where the service manager keeps
// its sockets (FDSTORE of systemd), new TCP connections wait for it instead. When the mode is left, its
// connections go on in the relays until they end, for an hour at most.
//
// What a relay sends carries the mark for masquerading and passes KUBE-PORTALS-OUT
// untouched: a packet is translated once, as in the modes of the kernel. So two
// Services that are each other's endpoints reach none, and an endpoint on a node
// port's number of this node is whoever listens there.
//
// The files, each built on those before it:
//
//	layout.go          the relay address; chains and their fixed rules; objects, and
//	                   entries as rules and back
//	compile.go         ports to objects (Compiler)
//	sim.go             objects and a packet to an outcome
//	nat.go             edits of the nat table as scripts for iptables-restore, and
//	                   what iptables-save prints as objects
//	nft.go             the same in tables of our own in nftables
//	table_linux.go     the two kinds of table in the kernel
//	handover_linux.go  listening sockets that outlive a process
//	relay_linux.go     what rules lead to: the address, the listeners, the drop port
//	driver_linux.go    the host (Driver): commit, stale UDP flows, draining, observe
//	mode*.go           the mode, and which kind of table works here
package userspace
