// SPDX-License-Identifier: Apache-2.0

// Package hnsemu is an HNS for tests: networks, endpoints and load balancers in
// memory, behind the functions of the DLL that Windows has.
//
//	hns.Driver ── Client ─────────────────────────────────┐
//	tandem.exe ── hcsshim ── dll/computenetwork.c ── wire ──┴─▶ Emulator.Do ─▶ log
//	   (Wine)                          (Serve)                     │
//	                                               VFP.Decide ◀── objects ──▶ Check, Gaps
//
// It refuses what HNS refuses, has versions and switchable faults (Behaviour,
// Hook), counts every call and handle, and works out how long each frontend had
// no load balancer. Nothing takes real time: calls make the emulator's own clock
// advance.
//
// # The rules and their sources
//
// "Assumed" is what nobody has been seen to say of a real HNS. Where a rule is carried
// out the code says "rule: " and its name. ci/wine/smoke.ps1 prints what a node does
// beside what is assumed.
//
//	name              rule                                                         source
//	functions         functions, handles, GUIDs, strings, error records            hcsshim, hcn/zsyscall_windows.go
//	list-calls        a list is one call, and three for each object                hcsshim, hcn (ListX)
//	win32-codes       HRESULTs of facility 7 are codes of Windows                  hcsshim, internal/hcs errors
//	filters           filters by ID, Name and VirtualNetwork; "" matches none      hcsshim, hcn (filters); winkernel asks by ""
//	versions          9.5 is Server 2019, 15.4 and 15.5 are 2025                   kubernetes#137530, #131466, #131506
//	version-2004      11.10 is Windows 2004                                        hcsshim#1003
//	version-2022      13.2 is Server 2022                                          assumed
//	networks          networks are made, changed and deleted with their endpoints  hcsshim, hcn tests; "with" is assumed
//	policies          policies of networks and endpoints: Add, Update, Remove      hcsshim, hcn tests
//	extra-settings    settings are returned as they were given                     hcsshim, hcn tests
//	v1-api            HNSCall: version, networks and endpoints                     hcsshim, hcn v1 tests
//	modify            Modify from 15.4; 15.4 succeeds and changes nothing          kubernetes#131466
//	modify-frontends  Modify cannot change frontends                               assumed
//	given-id          Create keeps a given ID, and refuses one in use: 0xb7        hcsshim, hcn tests; 0xb7 is assumed
//	published-port    one endpoint for a port mapping: 0x803b0013                  hcsshim, hcn tests
//	needs-endpoints   a load balancer needs endpoints: 0x803b000d                  kubernetes#106936
//	endpoints-exist   a load balancer's endpoints must exist: 0x803b0002           assumed
//	one-frontend      one load balancer for a frontend: 0x803b0013, 0xb7           kubernetes#139519
//	id-case           ids are compared whatever their case                         hcsshim, hcn tests
//	twins             two remote endpoints of one address: 0x803b0013              assumed; Twins allows them
//	beside-a-pod      a remote endpoint beside a pod of its address                kubernetes#130963; without network: Windows-Containers#631
//	in-use            endpoints in use cannot be deleted: 0x803b002c               assumed; DeleteInUse, as kubernetes#76316
//	allotted          an endpoint without an address gets the lowest free          hcsshim, hcn tests; "lowest" is assumed
//	delete-fails      a first deletion may fail with 0x1f                          kubernetes#113524; the code is assumed
//	delete-lies       a deletion may succeed and do nothing                        Windows-Containers#631
//	drops-external    VipExternalIP may be dropped (DropExternal)                  calico#7305
//	normalises        other settings may be normalised (Normalise)                 assumed
//	degraded          State 4 is a degraded load balancer, 5 an endpoint           wcnscripts#21, #24; hcsshim EndpointState; in v2: assumed
//	lost-endpoint     a load balancer whose endpoint is deleted can be degraded       wcnscripts, scripts/findDegradedPolicies; its deletion fails: 0x803b0002
//	handles           handles end with the process of HNS: code 6                  assumed; StaleHandle, 0x6ba and 0x6be in the field
//	stopped           a stopped HNS answers 0x6ba                                  kubernetes#139503
//	restarted         a restarted HNS has all objects again                        kubernetes#139519; without: kubernetes#110849
//
// VFP is a model of the switch, as far as it is documented. It is what the
// scenarios' packets run through.
package hnsemu
