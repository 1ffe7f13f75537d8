// SPDX-License-Identifier: Apache-2.0

// Package userspace is the userspace mode on Linux: relays (core/relay) carry the
// connections, and rules of the nat table redirect connections to them, as in kube-proxy's
// mode of this name since Kubernetes 1.0:
//
//	PREROUTING ─▶ KUBE-PORTALS-IN                OUTPUT ─▶ KUBE-PORTALS-OUT
//	  KUBE-PORTALS-GUARD      outside of source ranges: drop
//	  KUBE-PORTALS-POD        frontends with another target for this node's pods
//	  KUBE-PORTALS-CONTAINER, KUBE-PORTALS-HOST     address, protocol, port ─▶ relay
//	  KUBE-PORTALS-CLOSED     other ports of cluster IPs: reject
//	  KUBE-NODEPORT-POD, -CONTAINER, -HOST          the same for node ports ─▶ relay
//	  after all foreign rules: KUBE-PORTALS-UNALLOCATED drops the rest of ServiceCIDRs
//	                             │
//	                             ▼
//	         DNAT to 169.254.84.1:port  (the relay address, on lo)  ─▶ relay ─▶ endpoint
//
// A port has a relay for each traffic policy of its frontends. Relays listen on a
// dedicated address of lo, the relay address: their ports conflict
// with no others, clients outside of this host can reach a relay only through its
// Service, and the relay address does not change with the node's. REDIRECT would drop
// packets from interfaces without an address, such as those of many pods.
//
// Where iptables is not installed or does not work, the same chains are in two tables
// of nftables, "ip tandem-userspace" and "ip6 tandem-userspace", written over netlink
// by linux/nft. There an entry is an element of its chain's set or map, so each chain takes
// one lookup. Rules that an earlier run has left in the other kind of table are
// removed as soon as the new ones are in place.
//
// Source ranges, rejects, drops and the detection of local pods are exact. The rules
// handle TCP, UDP and SCTP only: a ping to a cluster IP is routed as usual. SCTP to
// unallocated cluster IPs is rejected, not dropped: nothing can listen for it. Endpoints
// see the node's address, not the client's, and so do network policies: one that drops
// nodes drops every connection, one that allows them cannot tell clients apart. While the
// proxy is down all connections are rejected; after a restart it finds its rules and listens
// on the same ports again. Where the service manager keeps its sockets (FDSTORE of
// systemd), new TCP connections wait for it instead. When the node switches to another mode, connections
// continue in the relays until they end, for an hour at most.
//
// Packets from relays carry the masquerade mark and skip KUBE-PORTALS-OUT and
// KUBE-PORTALS-UNALLOCATED: as in the kernel modes, a connection is translated once. So two
// Services that are each other's endpoints make no loop, and an endpoint with the address of
// a node port of this node is a local socket, not the Service.
//
// The files:
//
//	layout.go        the relay address; objects (Key, Value); chains and the rules that depend
//	                 on the host only; entries as rules and back; edits as scripts for
//	                 iptables-restore, and what iptables-save prints as objects
//	compile.go       ports to objects (Compiler)
//	nft.go           chains and entries as objects of nftables, and back
//	table_linux.go   the two kinds of table in the kernel
//	relay_linux.go   targets of rules: the relay address, the listeners, the drop port;
//	                 listening sockets that outlive a process; stale UDP flows
//	driver_linux.go  the host (Driver): commit, draining, observe
//	mode*.go         the mode, its plan as text, and which kind of table works here; objects
//	                 and a packet to an outcome (Sim); which UDP flows a change makes stale
package userspace
