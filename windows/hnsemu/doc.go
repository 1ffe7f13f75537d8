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
// "Assumed" is what nobody has been seen to say of a real HNS; ci/wine/smoke.ps1
// prints what a node does beside it.
//
//	rule                                                    source
//	functions, handles, GUIDs, strings, error records       hcsshim, hcn/zsyscall_windows.go
//	a list is one call, and three for each object           hcsshim, hcn (ListX)
//	HRESULTs of facility 7 are codes of Windows             hcsshim, internal/hcs errors
//	filters by ID, Name and VirtualNetwork                  hcsshim, hcn (query filters)
//	versions: 9.5 is Server 2019, 15.4/15.5 are 2025        kubernetes#137530, #131466, #131506
//	version 11.10 is Windows 2004                           hcsshim#1003
//	version 13.2 is Server 2022                             assumed
//	Modify from 15.4; 15.4 succeeds and changes nothing     kubernetes#131466
//	Modify cannot change frontends                          assumed
//	Create ignores a given ID                               assumed; hcsshim's tests expect it to be kept
//	a load balancer needs endpoints: 0x803b000d             kubernetes#106936
//	a load balancer's endpoints must exist: 0x803b0002      assumed
//	one load balancer for a frontend: 0x803b0013, 0xb7      kubernetes#139519
//	ids are compared whatever their case                    hcsshim, hcn tests
//	two remote endpoints of one address: 0x803b0013         assumed; Twins allows them
//	a remote endpoint beside a pod of its address           kubernetes#130963
//	... which then has no network                           Windows-Containers#631
//	endpoints in use cannot be deleted: 0x803b002c          assumed; DeleteInUse, as kubernetes#76316
//	an endpoint without an address gets the lowest free     hcsshim, hcn tests; "lowest" is assumed
//	a first deletion may fail with 0x1f                     kubernetes#113524; the code is assumed
//	a deletion may succeed and do nothing                   Windows-Containers#631
//	VipExternalIP may be dropped (DropExternal)             calico#7305
//	other settings may be normalised (Normalise)            assumed
//	State 4 is degraded                                     wcnscripts#21, #24; in v2 objects: assumed
//	handles end with the process of HNS: code 6             assumed; StaleHandle, 0x6ba and 0x6be in the field
//	a stopped HNS answers 0x6ba                             kubernetes#139503
//	a restarted HNS has all objects again                   kubernetes#139519; without: kubernetes#110849
//
// VFP is a model of the switch, as far as it is documented. It is what the
// scenarios' packets run through.
package hnsemu
