// SPDX-License-Identifier: Apache-2.0

// Package conformance tests data planes with the scenarios in ci/scenarios: it parses
// them, and has the suite that every backend runs in its own tests.
//
//	ci/scenarios/*.txtar ──Load──▶ Scenario ──▶ Steps ──▶ Files ──▶ World ──▶ host, ports
//	                                              │                              │
//	                                        packet table                  Compiler (backend)
//	                                              │                              │
//	                                              ▼                              ▼
//	                     table  ═══  oracle.Decide  ═══  simulator (backend)   goldens
//
// The table must agree with the oracle, and the oracle with the simulator, for every
// row and for probes around every address. Run does the same with random worlds. It
// applies a stream of changes to each, with failing writes and a restart, and expects
// the same result as a compilation from scratch. The format of the files is described
// in ci/scenarios/README.md.
//
// The package is pure except for reading (and, with -update, writing) the scenario
// files. It is for tests only.
package conformance
