// SPDX-License-Identifier: Apache-2.0

// Package resolve is the whole Service policy of Tandem: what each address of a
// Service does with a connection, decided once, for every data plane and
// operating system.
//
//	Service ─┐
//	Slices  ─┼─▶ index.go      which endpoints serve a port; of a route, those of its backends
//	Host    ─┘        │
//	             pools.go      the cluster's pool and this node's pool:
//	                           ready endpoints, else terminating ones; narrowed by node and zone hints;
//	                           a zone's connections that are too many go to other zones;
//	                           without endpoints that have stopped answering;
//	                           each endpoint's share, in slots; hash tables
//	                  │
//	             resolve.go    which addresses the port answers on
//	             permit.go     which of them it may have on this host
//	             resolve.go    for each of them and each origin: Balance, Reject or Drop, SNAT or not, why
//	                  ▼
//	               []*model.Port
//
// The Host is made by host.go: of the configuration, the Node, ServiceCIDRs and what the machine
// says of itself.
//
// Everything here is pure: equal inputs give equal results, byte for byte.
//
// # Which address may be a Service's
//
// spec.externalIPs are written by any user who may write a Service (CVE-2020-8554).
// status.loadBalancer is written by controllers, which the administrator has
// installed, but the ports are the users'. So an external IP must not be an address
// in use, and a load balancer IP must not be an address and port that a node needs itself:
//
//	                                            external IP  load balancer IP
//	the API server's address and port (TCP)     rejected     rejected, always
//	any other, where --allowed-external-ips
//	has the word "only"                         rejected
//	this node's own address                     rejected     rejected for TCP 22, 10250 and this proxy's ports, on Guard.FixedIPs
//	another port of the API server's machine    rejected
//	inside a ServiceCIDR, or a range of pods    rejected     rejected
//	another Service's cluster IP, any port      rejected     rejected, always
//	this node's, with another's node port       rejected     rejected, always
//	a load balancer IP of another namespace     rejected
//	an endpoint of another namespace            rejected, but for this node's own addresses
//	another Node's address                      rejected, left to that node
//
// The last three are decided by core/track, which knows all of these. Of several Services that ask for one address and
// port the first by Authority has it, and then by age.
//
// --allowed-external-ips lifts the rows without "always". A cluster IP is rejected
// where it is an address of this node or of the API server, since all ports that the
// Service does not have are rejected. A rejected address is not reserved: other Services may have it.
//
// A node port takes a port of this node's addresses: 22, 10250, this proxy's, and those
// of an API server on them (TCP) are rejected, always.
//
// Load balancers do have addresses of nodes: ServiceLB of k3s puts the nodes' own
// into the status, and kube-vip and keepalived bind theirs to an interface of one
// node. MetalLB and clouds bind them nowhere. External IPs that keepalived binds
// to a node, or that are the nodes' own, need the setting; kube-proxy takes them
// from every user.
//
// This node's own addresses are those of its Node object and of the system, but
// not those on dummy devices: they are put there for Services, by kube-ipvs0, for
// anycast, or by NodeLocal DNS, which has the cluster IP of kube-dns. Guard.FixedIPs are
// those of the Node object, and those that the system has with a subnet: kube-vip and
// keepalived bind a /32 or /128 to one node at a time, and it is the Service's on all of
// them. A range of pods is the podCIDR of the Node or the cluster's, where this node has
// no address in it.
//
// Where an address is both external IP and load balancer IP of a Service, its
// loadBalancerSourceRanges apply. A family without a range is closed, and that is a problem of the Service.
package resolve
