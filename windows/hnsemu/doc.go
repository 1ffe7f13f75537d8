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
// VFP is a model of the switch, as far as it is documented. It is what the
// scenarios' packets run through.
package hnsemu
