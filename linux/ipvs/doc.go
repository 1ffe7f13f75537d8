// SPDX-License-Identifier: Apache-2.0

// Package ipvs programs Services into the kernel's IPVS as virtual servers with
// destinations. A constant set of ipsets and iptables rules does what IPVS cannot:
// distinguish origins, reject and drop.
//
//	mangle PREROUTING, OUTPUT
//	  source ranges: drop clients outside
//	  mark := masquerade, unless from a pod of this node
//	  ipsets CLUSTER-IP, EXTERNAL-IP, LOAD-BALANCER, NODE-PORT-*:
//	    frontend ─▶ mark (service, masquerade, denied): the finished action
//	  ipsets FROM-POD, FROM-HOST: where an origin's action is another one
//	  drop
//	routing: service packets to external and load balancer IPs are local
//	filter:  reject; drop packets to unallocated addresses in a ServiceCIDR
//	IPVS:    virtual server by mark, else by address ─▶ endpoint
//	nat POSTROUTING
//	  masquerade packets with the mark, and hairpins
//
// The rules do not depend on Services. A Service has, for each of its addresses, a
// virtual server and a set entry with the frontend's action (Mark). Replacing an
// endpoint takes two messages to the kernel, four if the endpoint is on this node.
//
// IPVS sees only the destination. A virtual server by address has the endpoints for clients
// from outside, and none while these are denied. Where another traffic policy chooses those
// for pods or the host, as with externalTrafficPolicy Local, their packets get a number in
// their fwmark, and a virtual server by fwmark (ipvsadm -f) has their endpoints, also while
// both have the same: so no change of endpoints moves clients to another server. kube-proxy
// does not distinguish them in this mode.
//
// Cluster IPs are bound to kube-ipvs0, as in kube-proxy. External and load balancer
// IPs are bound to no device: the routing rule delivers service packets locally, and
// their other ports are not affected.
//
// A removed TCP endpoint drains: weight 0 until its connections have ended, 15
// minutes at most. The weights in the kernel are the only record, so drains
// survive a restart.
//
// Virtual servers use the weighted schedulers, wrr for rr and wlc for lc,
// also while all weights are the same: endpoints that start slowly or come back get
// weights for a while, and the kernel rejects connections to a virtual server while it
// exchanges its scheduler. An installed rr or lc stays while all weights are the same.
//
// Owned objects are: virtual servers with flagOwned, sets of Tandem's type and options,
// chains with the owner rule, Tandem's routing table and the rule that selects it, and
// kube-ipvs0 with our alias. Ownership does not depend on the masquerade bit, which a
// user may change. Leftovers of kube-proxy under names that we need are adopted; all
// other objects are never touched.
//
// Audits detect external changes: every 30 s (syncPeriod), or less often if reading
// everything takes long.
//
// The files:
//
//	layout.go        chains, device and ipsets; objects (Key, Value)
//	fwmark.go        bits of the mark; fwmarks of virtual servers
//	compile.go       ports to objects (Compiler): the mark of each origin's packets,
//	                 virtual servers with their schedulers and destinations
//	rules.go         the chains and their rules, to iptables-restore and back
//	mode.go          the mode, and its plan as text; objects and a packet to an outcome (Sim)
//	kernel_linux.go  sockets; device, addresses, routes, sets, tables and virtual servers
//	driver_linux.go  the kernel (Driver): commit, and destinations that drain
//	observe_linux.go the kernel back to objects; connections by frontend, for top
//	mode_linux.go    the mode: sysctls; node addresses; whether this machine supports it
//
// The encoding is in linux/virtualserver, linux/ipset and linux/xtables.
package ipvs
