// SPDX-License-Identifier: Apache-2.0

// Package conformance judges data planes by the scenarios in ci/scenarios: it
// reads them, and it is the suite that every backend runs in its own tests.
//
//	ci/scenarios/*.txtar ──Load──▶ Scenario ──▶ Steps ──▶ Files ──▶ World ──▶ host, ports
//	                                              │                              │
//	                                        packet table                  Compiler (backend)
//	                                              │                              │
//	                                              ▼                              ▼
//	                     table  ═══  oracle.Decide  ═══  simulator (backend)   goldens
//
// The table must agree with the oracle, and the oracle with the simulator, for
// every row and for probes around every address. Run does the same with random
// worlds, follows each of them through a stream of changes, with failing writes
// and a restart, and demands what a compilation from scratch gives. The format
// of the files is described in ci/scenarios/README.md.
//
// The package is pure but for reading (and, with -update, writing) the scenario
// files. It is for tests only.
package conformance
