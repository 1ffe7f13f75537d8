// SPDX-License-Identifier: Apache-2.0

// Package hnsemu emulates HNS for tests: networks, endpoints and load balancers in
// memory, behind the functions of Windows' DLL.
//
//	hns.Driver ── Client ─────────────────────────────────┐
//	tandem.exe ── hcsshim ── dll/computenetwork.c ── wire ──┴─▶ Emulator.Do ─▶ log
//	   (Wine)                          (Serve)                     │
//	                                               VFP.Decide ◀── objects ──▶ Check, Outages
//
// It rejects what HNS rejects, has versions and switchable faults (Behaviour,
// Hook), logs every call, and measures how long each frontend had
// no load balancer. Calls take no real time unless Wait is set: they advance the emulator's own clock.
//
// From a recording of a proxy's calls (hns.Record), Player answers as an HNS, and Replay repeats the
// calls on the emulator.
//
// # The rules and their sources
//
// HCNHResult is MicrosoftDocs/Virtualization-Documentation, virtualization/api/hcn/Reference/HCNHResult.md,
// read at 18dc3cea; microsoft/WSL, src/windows/common, at 72faf8c4 and a1b261ab; MrUndead1996/vm-lord,
// crates/platform/src/hcn.rs, at 4a6eed70, which says it of a live host; windowsserverdocs, at 0dfe6456;
// Troubleshooting Kubernetes is MicrosoftDocs/Virtualization-Documentation,
// virtualization/windowscontainers/kubernetes/common-problems.md, at 887d4ccf.
//
// "Assumed" marks behaviour without a published observation of a real HNS. The code that implements
// a rule says "rule: " and its name. Experiments named after the rules ask any HNS
// (package windows/contract, tandem test hns); the codes below are those that
// they expect, unless a report of a real machine of that version is kept in reports
// (answers.go). ci/wine/smoke.ps1 prints what a node does beside the assumption.
//
//	name              rule                                                         source
//	functions         functions, handles, GUIDs, strings                           hcsshim, hcn/zsyscall_windows.go
//	error-records     an error has a record with its HRESULT, unsigned             kubernetes#100384, hcsshim#1043, antrea#2301
//	list-calls        a list is one call, and three for each object                hcsshim, hcn (ListX)
//	win32-codes       HRESULTs of facility 7 (0x80070000) are codes of Windows     hcsshim, internal/hcs errors
//	filters           filters by ID, Name and VirtualNetwork; "" matches none      hcsshim, hcn (filters); winkernel asks by ""
//	versions          9.5 is Server 2019, 15.4 and 15.5 are 2025                   kubernetes#137530, #131466, #131506
//	version-2004      11.10 is Windows 2004                                        hcsshim#1003
//	version-2022      13.2 is Server 2022                                          assumed
//	networks          networks go with their endpoints; a name twice: 0x803b0010   hcsshim, hcn tests; microsoft/WSL, NatNetworking.cpp and WslCoreNetworkEndpointSettings.h; HCNHResult
//	policies          policies of networks and endpoints: Add, Update, Remove      hcsshim, hcn tests
//	extra-settings    settings are returned as they were given                     hcsshim, hcn tests; that load balancers have no names, and keep the order of endpoints: assumed
//	v1-api            HNSCall: version, networks, endpoints, accelerated MACs      hcsshim, hcn v1 tests
//	modify            Modify from 15.4; 15.4 succeeds and changes nothing          kubernetes#131466; that the rest is kept: assumed
//	modify-frontends  Modify cannot change frontends                               assumed
//	given-id          Create keeps a given ID, and refuses one in use: 0xb7        hcsshim, hcn tests; 0xb7 of networks: WSL#7998, of others: assumed
//	not-found         what is not there: 0x490, 0x803b0001 or 0x803b0002           antrea#2301; azure-container-networking#715; MrUndead1996/vm-lord, hcn.rs; WSL#11811
//	bad-json          settings that are no JSON: 0x803b001b                        HCNHResult (HCN_E_INVALID_JSON); that a wrong type is so, too: assumed
//	bad-address       not one, in no subnet: 0x803b001e; the gateway: 0x803b002f   HCNHResult; winkernel has remote ones of cluster IPs; microsoft/SDN, Kubernetes/windows, Get-PodGateway
//	published-port    one endpoint for a port mapping: 0x803b0013                  hcsshim, hcn tests
//	needs-endpoints   a load balancer needs endpoints: 0x803b001c                  kubernetes#100384, calico#5762; 0x803b000d: kubernetes#106936
//	needs-mapping     a load balancer needs a port mapping: 0x803b000d             assumed; some have none all the same: kubernetes#141488
//	endpoints-exist   a load balancer's endpoints must exist: 0x803b0002           assumed
//	one-frontend      one load balancer for a frontend: 0x803b0013 or Exists       kubernetes#139519 (0xb7); with several VIPs: assumed
//	id-case           ids are compared whatever their case                         hcsshim, hcn tests
//	twins             two remote endpoints of one address: 0x803b0013              assumed; Twins allows them
//	beside-a-pod      a remote endpoint beside a pod of its address                kubernetes#130963; without network: Windows-Containers#631
//	in-use            endpoints in use cannot be deleted: 0x803b002c               HCNHResult (HCN_E_ENTITY_HAS_REFERENCES); of load balancers: assumed; DeleteInUse, as kubernetes#76316
//	allotted          an endpoint without an address gets the lowest free          hcsshim, hcn tests; "lowest" is assumed
//	delete-fails      a first deletion may fail with 0x1f (DeleteFailsOnce)        kubernetes#113524; the code is assumed
//	delete-lies       a deletion may succeed and do nothing (DeleteLies)           Windows-Containers#631
//	drops-external    VipExternalIP may be dropped (DropExternal)                  calico#7305
//	normalises        other settings may be normalised (Normalise)                 assumed
//	degraded          State 4 is a degraded load balancer, 5 an endpoint           wcnscripts#21, #24; hcsshim EndpointState; in v2: assumed
//	lost-endpoint     an endpoint in use is gone: State 4, deletion 0x803b0002     wcnscripts, scripts/findDegradedPolicies (Degrades)
//	handles           handles end with the process of HNS: code 6                  windowsserverdocs, hcn-declaration-handles (RPC contexts); rpcnterr.h; StaleHandle, 0x6ba and 0x6be in the field
//	stopped           a stopped HNS answers 0x6b5                                  kubernetes#139503, winkernel's tests
//	restarted         a restarted HNS has all objects again                        kubernetes#139519; without: kubernetes#110849
//	no-limits         numbers of objects and endpoints are not limited             of the emulator; the product keeps to 1,024 endpoints
//	port-pool         64 dynamic ports each without DSR, else 0x803b0013 (Ports)   Troubleshooting Kubernetes; Azure/AKS#1375; shared, and so not limited here, since KB4551853
//	held-port         a TCP port that the node itself has: 0x803b0013 (Hold)       kubernetes/community#8883, hcsshim#1043 (Server 2019); that others, and DSR, allow it: assumed
//	port-stays        the TCP port of a deleted one: 0x803b0013 (PortStays)        kubernetes#137530 (17763.8146), without DSR
//	plain             namespaces and SDN routes are returned as they were given    hcsshim, hcn tests
//	unimplemented     other paths of HNSCall, other modifications: 0x80004001      of the emulator
//	time              a call takes 1 ms of the emulator's own time, unless set     of the emulator; on a slow node 43 ms and 88 ms: kubernetes#109124
//	no-balancer       a packet without a load balancer passes unchanged            assumed; nothing in hcsshim, hcn/hcnpolicy.go, would reject it
//	external          clients outside need VipExternalIP                           assumed; node ports worked before it was known: kubernetes#113742
//	node-ports        node ports do not answer the node itself                     kubernetes.io, Networking on Windows
//	dsr               endpoints see the client with DSR, else the source VIP       kubernetes.io, Networking on Windows; from the node itself: assumed
//
// VFP models the virtual switch by the last four rules, for the packets of scenarios.
package hnsemu
