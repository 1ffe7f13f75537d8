// SPDX-License-Identifier: Apache-2.0

// Package core is the operating-system independent part of Tandem: it decides
// what every Service address does, and keeps a data plane in that state. It holds
// no code itself; this page shows how its packages lead into one another.
//
//	API server ──▶ watch ──────┐ *model.Service, *model.Slice, *model.Node, ...
//	folder ──────▶ manifests ──┤
//	                           ▼
//	                         engine  one goroutine owns all state
//	   ┌───────────────────────┴────────────────────────────────────────┐
//	   │ track ──dirty Services──▶ resolve ──[]model.Delta──▶ dataplane │
//	   │ inputs by name            policy, pure               │    ▲    │
//	   │                                      Compiler.Port ◀─┘    │    │
//	   │                                      objects ──▶ ledger ──┘    │
//	   │                                        want - have = ops       │
//	   └──────────────┬────────────────────────────────────────┬────────┘
//	                  │ status, deltas                         │ ops, one result each
//	                  ▼                                        ▼
//	   health, metrics, events, flows, suspect      Driver: linux/..., windows/..., core/relay
//
// # The path of a change
//
// One endpoint of a Service is replaced:
//
//  1. watch decodes the EndpointSlice and converts it (watch.Slice). An invalid part
//     becomes a model.Problem; the rest is passed on.
//  2. engine takes it from its inbox into a turn: as many changes as a sync has room
//     for, the rest waits by namespace. It stores them in track.Tracker, which marks
//     the Service dirty. Services that others' changes affect (Tracker.Due) get turns
//     of their own (Touch).
//  3. Tracker.FlushTouched resolves the dirty Services: resolve.Service chooses endpoints,
//     pools and Actions; resolve.Reslot keeps the order of endpoints, so that one
//     slot changes. Ports that differ from before are the deltas.
//  4. dataplane.Backend.Update compiles the old and the new model.Port to objects
//     and tells the ledger which are wanted and which are released.
//  5. Backend.Sync takes the differences from the ledger as ops, in the order of
//     their ranks, and commits them by the Driver. Each result is recorded; what
//     failed is retried with back-off.
//  6. engine publishes its status; flows deletes stale UDP conntrack entries; health
//     and metrics take the deltas.
//
// Nothing on this path visits other Services or reads the kernel. Audits do that
// beside it (package dataplane).
//
// # What each package promises
//
//	model        immutable values; no Kubernetes types, no I/O, no clock
//	watch        API server to model; keeps no objects; deletes only what the server has deleted
//	manifests    a folder to model; an error names file and line, and affects its object only
//	track        any order of events; cost is that of the dirty Services
//	resolve      pure; all Service policy, each decision with its Reason
//	ledger       the only diff; no I/O
//	dataplane    the only sync; Compiler is pure, Driver only writes and reads
//	engine       one goroutine; the last good state stays when anything fails
//	flows        stale flows of a delta; never blocks the engine
//	suspect      endpoints that stopped answering, on evidence about each address; pure
//	history      the last changes, with the time of each stage; bounded
//	health       HTTP servers; they read, except for the log level; bounded connections
//	events       Kubernetes Events: merged, limited, never blocking
//	metrics      kube-proxy's names; no label with an address; names of Services only in
//	             tandem_service_connections_total
//	question     one document of a node, and one function of it for each query
//	diagnosis    the checks of `tandem doctor`: pure, from facts that platform reads
//	snapshot     all state in a file, decoded as untrusted input, and its replay
//	tracing      changes as OpenTelemetry traces; off unless configured
//	ui, manual   pages of /ui and of the manual; no external resources
//	relay        the userspace data plane: TCP and UDP relays on any system
//	config       typed and validated configuration
//	strictyaml   YAML and JSON, each fault with its line
//	printable    untrusted text, made safe to show
//	wire         answers on their way to commands: JSON, or CBOR with the same fields
//	sleep        waits that end with a context
//	oracle       reference semantics: what must happen to one packet
//	test         what only tests use: the suite that every backend runs, a data plane in memory
//
// Imports point downwards: resolve knows nothing of track, the ledger nothing of
// data planes, and nothing here of linux or windows. Only watch and manifests import
// k8s.io. A new backend is a folder with a Compiler and a Driver, and one line in
// platform: see package dataplane.
package core
