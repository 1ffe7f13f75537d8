// SPDX-License-Identifier: Apache-2.0

// Package simulate runs whole proxies in virtual time, with faults: engine, client of
// the API server, health checks, Events, control socket and switches are the product's
// own (platform.Proxy), and so is the compiler of each mode. In memory are the API
// server (core/watch/apitest), the network, and what a mode writes to:
//
//	apitest ──network──▶ platform.Proxy ──▶ plane: a table of objects that one process
//	   ▲                     ▲    │               after the other writes; for kernelspace
//	changes, faults       crash   ▼               the driver itself on windows/test/hnsemu
//	                            judge: packets, after every single write
//
// A run is a plan, which follows from a seed: changes, faults, crashes and switches,
// one after the other. The judge checks the data plane between any two writes:
//
//   - a packet never reaches an endpoint that its Service did not have, nor within one change an
//     endpoint that policy leaves out before and after it (I2);
//   - what no change touches is not changed (I1, I8), also while a process starts on
//     what another one has left, at whichever write that was killed;
//   - a Service that had endpoints before and after a change always has some; but where
//     HNS must replace a load balancer, nothing serves between its deletion and creation.
//
// And at the end of each plan, when all faults are over: everything is as it would be
// after a fresh start, within a bound (I4, I7); then nothing is written any more (I6);
// /healthz reports it (I9); a snapshot means what the proxy has resolved (I13); no goroutines
// remain (I10); and after a cleanup nothing is left, however often it is done (I12).
//
// TestEachCrashPoint is not random: a process is killed at each single write of a start,
// a restart, a change, a repair, a switch and a cleanup.
//
//	go test ./ci/simulate                                        a few seconds of it
//	make verify                                                  the seeds 0 to 3, on every machine
//	make simulate                                                new seeds for some minutes
//	go test ./ci/simulate -run TestSimulation -mode M -kind K -seed N    one run again
//	go test -v ./ci/simulate -run TestSimulation -runs 100000 -first N   so many, however long it takes
//
// Violations are printed as they are found, and each minute how far it is; with -v, since go test
// else prints nothing before the end. It goes on after a violation, and fails at
// the end. A run that fails is made shorter as well: the fewest steps of its plan
// that fail still. The plan and what it does follow from the seed alone; the order in
// which goroutines run does not, so that a rare failure may need -times.
package simulate
