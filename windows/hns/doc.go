// SPDX-License-Identifier: Apache-2.0

// Package hns programs Services into load balancers of the Host Networking
// Service of Windows: the kernelspace mode.
//
//	Port ──Compiler──▶ node address                  (what the driver must know)
//	     (pure)        remote endpoint 10.244.2.2    (a pod of another node)
//	                   VIP endpoint 10.96.0.10       (overlay: a cluster IP leads here)
//	                   load balancer 10.96.0.10:80   (one for each frontend)
//	                        │
//	                        ▼ ops, each with a result of its own
//	                     Driver ── ids, MAC and provider addresses, source VIP
//	                        │       journal of owned load balancers
//	                        ▼
//	                   HNS (interface) ── functions.go and hcn_windows.go, or windows/test/hnsemu
//
// Keys and values hold addresses only. The driver maps them to the ids of this HNS
// (inventory.go). Where what only HNS knows is not as desired, Observe says so in the
// object's Drift, and the ledger repairs the object. Load balancers are listed at the
// start, by audits, on doubt, and when HNS reports another one for a frontend; endpoints
// also once in a Commit that needs an unknown one.
//
// # Ownership
//
// Tandem's endpoints have names that begin with "tandem"; pods' local endpoints
// are never created or deleted. Load balancers have no names, so a journal keeps their
// ids and, while one is being created, its frontend; without the journal they are recognised by the
// frontends that Services need. A load balancer that another program, such as kube-proxy, created for
// the frontend of a Service is adopted. All others stay as they are.
//
// # What HNS cannot do
//
// For single Services these are Gaps, which are reported to users:
//
//   - reject connections without endpoints;
//   - treat this node's pods and processes unlike clients from outside;
//   - schedulers and weights; ejection of endpoints that stop answering;
//   - source ranges: such a load balancer IP is not programmed at all (below);
//   - SCTP; endpoints on several ports behind one frontend; more than 1024 endpoints;
//   - an affinity timeout; affinity before HNS 12.0; IPv6 before HNS 11.10, or on overlay networks;
//   - endpoints with this node's own address; node ports on some addresses only;
//   - with the annotation preserve-destination: endpoints of other nodes, and SNAT.
//
// And for all Services alike:
//
//   - other ports of a cluster IP are not rejected, and nothing is ever dropped, not even
//     packets to an unallocated address in a ServiceCIDR: packets without a load
//     balancer are routed as usual. Nothing in HNS rejects: its ACLs
//     allow, block or pass (hcsshim, hcn/hcnpolicy.go), and a client that is
//     blocked waits as long as one whose packets get lost;
//   - cluster IPs serve this node's pods and processes only, node ports all except
//     the node itself;
//   - endpoints of a cluster IP see the client's address with DSR, an SNAT address without.
//
// # Why source ranges are not enforced
//
// A load balancer of HNS has no list of clients, so an ACL would have to block all
// others. None can:
//
//   - An ACL belongs to an endpoint of this node: its layer is at the port of
//     the pod, with the load balancer's NAT between it and the network. An incoming packet
//     is translated before it: the ACL sees the pod's address, not
//     the VIP, and cannot tell the VIP's clients from those of the cluster IP
//     (Firestone, "VFP", NSDI 2017: layers above NAT see the DIP, those below it
//     the VIP).
//   - Under policy Cluster it sees the node instead of the client, and endpoints
//     of other nodes have no port on this node.
//   - An endpoint with any ACL passes only what its ACLs allow
//     (Windows-Containers#616, "by design"), and the ACLs of pods belong to the
//     agents of NetworkPolicy: one of Tandem's would cut pods off, or be replaced.
//   - What the ACLs of a network (from 15.0) see is not documented.
//
// kube-proxy programs such a VIP for all clients (kubernetes#107019, #120033). Tandem
// does not program it and reports why, and the Service's healthCheckNodePort fails on
// this node; its cluster IP and node port are programmed, as everywhere. Where the
// cloud's load balancers filter clients themselves and send the rest to the
// VIP, --winkernel-source-ranges=trust programs it for all clients.
//
// # What is written, and compared
//
// Services become usable one by one, namespaces in turn, DNS first in each: each load balancer
// follows its own endpoints. A Commit ends after two seconds and leaves the rest for the next, so
// that thousands of slow calls hold up neither changes nor probes.
//
// HNS returns other settings than it is given (calico#7305). Later reads are compared with
// what Create or Modify returned, which the journal keeps, not with the request.
//
// On an overlay the source VIP needs an endpoint. It is found by its address
// or a known name, or created: with the address of --source-vip or of flannel's
// sourceVip.json, else with one that HNS chooses, which is reported: no IPAM has
// reserved it. Other programs' remote endpoints are
// used where they lead to the right node, else replaced. If a remote
// endpoint has the address of a pod of this node, the pod has no network: such endpoints are
// deleted, no matter who created them.
//
// # Health checks of VIPs
//
// Some clouds send a node's health checks to the VIP. With --forward-healthcheck-vip
// these reach the endpoint that --root-hnsendpoint-name names, on the
// Service's healthCheckNodePort or else the proxy's own health port.
//
// # Known faults of HNS
//
// Each of these has a test (fault_test.go, down_test.go, pod_test.go,
// restart_test.go, overlay_test.go, echo_test.go, degraded_test.go, migrate_test.go,
// cold_test.go).
// HNS before 15.5 cannot change a load balancer in place, and 15.4 claims to: what it
// returns is compared. A replacement is one deletion and one creation with nothing in
// between, at most once a second for a frontend. Objects vanish while they are listed. Calls hang: each
// has a watchdog, and while a write hangs no other call is made. The error for a frontend that
// another load balancer has is also that for a listener on its port, for exhausted dynamic ports and, on a
// build of Server 2019, for the port of a deleted load balancer. Listings are slow, and take at most a tenth of
// the time. HNS loses load balancers, finds lost ones again, and reports
// deletions that did not happen. Pods are in EndpointSlices before they have an endpoint. In each
// case "could not read" is never taken for "absent".
//
// Objects can exist and have no effect, Tandem's or others': degraded load balancers and
// endpoints, load balancers without port mappings, DSR without loopback. Problems counts
// them, for status, doctor and a metric; owned load balancers without port mappings are surplus. Whether
// an object is degraded is in its State, which audits read; that of remote endpoints, by far the most, for a minute
// at a time and in turn. Owned objects are re-created, with back-off; endpoints of pods are the CNI plug-in's:
// it knows their policies, routes and namespaces, and without one a pod has no network.
// HNS may not find an endpoint of a degraded load balancer, and then rejects its deletion
// (wcnscripts, scripts/findDegradedPolicies): it is changed in place where that is
// possible; otherwise HNS has to be restarted.
//
// `tandem hns dump` shows the Health of endpoints and load balancers that reports an
// error. No decision uses it: the codes' meaning is not published, and one other than 0 in an object that
// works would be a false alarm. In the old API it is a
// LastErrorCode, which is 0 in all published answers (answers_test.go). In hcsshim
// (0.14.1, 0.15.0) and hnslib (0.1.2, 0.1.3) load balancers have no Health
// (hcn/hcnloadbalancer.go), and that of endpoints is untyped (hcn/hcn.go);
// Microsoft's schema of HCN documents has none. Microsoft's scripts for degraded load
// balancers compare State, too (wcnscripts#21, #24).
//
// # What the emulator cannot prove
//
// Tests run on windows/test/hnsemu, directly and, under Wine, through the DLLs' real
// interface (ci/wine), where hcsshim's own tests and kube-proxy's proxier judge
// emulator and driver. Nothing here has run on Windows. The tests prove which calls are made,
// in which order, and with which contents. They do not prove what Windows' virtual switch does with
// packets, how long a real HNS takes, that it keeps to its schema, or that load balancers
// without DSR reserve ports. ci/wine/smoke.ps1
// is for a real node. `tandem hns dump` shows what a node's HNS holds, `tandem hns diff` how it
// differs from the desired state (View).
package hns
