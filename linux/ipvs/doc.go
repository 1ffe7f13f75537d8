// Package ipvs programs Services into the kernel's IPVS: virtual servers and
// their destinations, with a constant set of ipsets and iptables rules around
// them that know what IPVS cannot: who asks, and what shall not be balanced.
//
//	mangle PREROUTING, OUTPUT
//	  source ranges: drop who is outside
//	  mark := masquerade, unless a pod of this node
//	  ipsets CLUSTER-IP, EXTERNAL-IP, LOAD-BALANCER, NODE-PORT-*:
//	    front ─▶ mark (claimed, masquerade, denied): the finished answer
//	  ipsets FROM-POD, FROM-HOST: where an origin's answer is not the common one
//	  drop
//	routing: claimed packets for external and load balancer IPs are local
//	filter:  refuse; drop what is in a range of cluster IPs and none of them
//	IPVS:    virtual server by mark, else by address ─▶ endpoint
//	nat POSTROUTING
//	  masquerade what has the mark, and (hairpin) what goes back to its sender
//
// The rules never change with Services. A Service is a virtual server for each of
// its addresses, and an entry in a set for each that says what the front does
// (see Mark). Replacing an endpoint is two messages to the kernel, four where the
// endpoint is on this node.
//
// IPVS looks at the destination only. Under externalTrafficPolicy Local, clients
// outside get this node's endpoints, while pods and the host may use all: packets
// of those get a number in their mark, which leads them to a virtual server by
// mark (firewall mark, ipvsadm -f) with the other endpoints. kube-proxy cannot
// tell them apart in this mode.
//
// Cluster IPs are bound to kube-ipvs0, as kube-proxy does. External and load
// balancer IPs are bound nowhere: the routing rule brings what is claimed here,
// and all their other ports stay as the network has them.
//
// An endpoint of TCP that goes keeps its connections (weight 0) until they have
// ended, 15 minutes at most. The weights in the kernel are the only record, so
// drains survive a restart.
//
// Ours are: virtual servers that have a flag of ours, sets that are made as ours
// are, chains that have a rule of ours that does nothing but say so, our routing table and the rule
// that leads to it, and kube-ipvs0 with our alias. None of that depends on the bit
// of the mark, which a user may change. What kube-proxy left under the names we
// need is taken over; all else of others is never touched.
//
// What others do to all that is found when it is read the next time: every 30 s
// (syncPeriod), or less often where that takes long.
//
// The parts:
//
//	layout.go, mark.go, key.go    what there is: sets, chains, marks; objects
//	base.go                       the skeleton: sets, chains and their rules
//	compile.go, port.go,          ports to objects (Compiler); what their parts share,
//	  answer.go                   and what each origin gets
//	number.go                     numbers of virtual servers by mark
//	sim.go                        objects and a packet to an outcome (Sim)
//	text.go                       objects for ipset, iptables and ipvsadm (Script)
//	tables.go, entry.go           chains and entries to and from the kernel's forms
//	driver_linux.go               the kernel (Driver): sets,
//	server_linux.go               virtual servers,
//	drains_linux.go               destinations that drain,
//	link_linux.go                 device, addresses, routing, and
//	tables_linux.go               iptables, by the commands of linux/xtables
//	follow_linux.go               the machine's addresses, as they change
//	retire_linux.go, divert_linux.go  leaving to another mode
//	observe_linux.go              the kernel back to objects; again_linux.go: when
//	probe_linux.go, mode*.go      whether this machine can do it; the mode
package ipvs
