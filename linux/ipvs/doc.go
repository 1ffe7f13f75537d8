// SPDX-License-Identifier: Apache-2.0

// Package ipvs programs Services into the kernel's IPVS: virtual servers and
// their destinations, with a constant set of ipsets and iptables rules around
// them for what IPVS cannot do: tell origins apart, reject and drop.
//
//	mangle PREROUTING, OUTPUT
//	  source ranges: drop clients outside
//	  mark := masquerade, unless from a pod of this node
//	  ipsets CLUSTER-IP, EXTERNAL-IP, LOAD-BALANCER, NODE-PORT-*:
//	    frontend ─▶ mark (service, masquerade, denied): the finished action
//	  ipsets FROM-POD, FROM-HOST: where an origin's action is another one
//	  drop
//	routing: service packets to external and load balancer IPs are local
//	filter:  reject; drop what is in a range of cluster IPs and is none of them
//	IPVS:    virtual server by mark, else by address ─▶ endpoint
//	nat POSTROUTING
//	  masquerade what has the mark, and hairpins
//
// The rules never change with Services. A Service is a virtual server for each of
// its addresses, and an entry in a set for each with the frontend's action (Mark).
// Replacing an endpoint is two messages to the kernel, four where the endpoint is
// on this node.
//
// IPVS knows the destination only. Where pods or the host have another pool than
// clients outside, their packets get a number in their mark, which leads them to a
// virtual server by fwmark (ipvsadm -f) with the other endpoints. kube-proxy cannot
// tell them apart in this mode.
//
// Cluster IPs are bound to kube-ipvs0, as in kube-proxy. External and load
// balancer IPs are bound to no device: the routing rule delivers service packets
// here, and all their other ports stay as the network has them.
//
// A removed TCP endpoint drains: weight 0 until its connections have ended, 15
// minutes at most. The weights in the kernel are the only record, so drains
// survive a restart.
//
// Owned are: virtual servers with a flag of ours, sets of the type and options of
// ours, chains with the owner rule, our routing table and the rule that leads to
// it, and kube-ipvs0 with our alias. None of that depends on the masquerade bit,
// which a user may change. What kube-proxy left under the names that we need is
// adopted; everything else of others is never touched.
//
// Audits detect external changes: every 30 s (syncPeriod), or less often where
// reading everything takes long.
//
// The files, each built on those before it:
//
//	layout.go           sets, chains and device; objects (Key, Value)
//	fwmark.go           bits of the mark; fwmarks of virtual servers
//	compile.go          ports to objects (Compiler); what each origin's packets get
//	rules.go            the chains and their rules, to iptables-restore and back
//	sim.go              objects and a packet to an outcome (Sim)
//	kernel_linux.go     sockets; device, addresses, routes and sets
//	server_linux.go     virtual servers and destinations, and how those drain
//	driver_linux.go     the kernel (Driver); draining when another mode takes over
//	observe_linux.go    the kernel back to objects
//	mode*.go            the mode; whether this machine can do it; its plan
//
// IPVS itself is spoken by linux/virtualserver, sets by linux/ipset, rules by
// linux/xtables.
package ipvs
