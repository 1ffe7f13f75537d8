// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the one implementation of "make the kernel match": every
// mode brings a Compiler, which states what objects a port needs, and a Driver,
// which creates, replaces and deletes objects; New joins them to a Backend, which others see
// as a Syncer, an Inspector and Counters. contract.go has all of it; SimpleCompiler and
// SimpleDriver supply defaults for what most modes do not need.
//
//	[]model.Delta ─▶ Update ─▶ Compiler.Port ─▶ objects ─▶ ledger (want)
//	                                                          │ Plan
//	kernel, HNS ◀── Driver.Commit ◀────── batches of ops ◀────┤
//	     │                │ one result for each op            │
//	     │                └─────────────── Record ───────────▶│ (have)
//	     └── Driver.Observe ── Adopt at start, Audit later ──▶┘
//
// A change costs what its ports cost. Nothing here walks all ports but a change
// of the host, requests of users, and an audit beside the changes. The data plane
// is read at the start and by audits, never for a change.
//
// # Reading back
//
// The first read is trusted. A difference found by an audit is only a
// suspicion: objects change meanwhile, and a dump concurrent with writes may miss
// others. An audit compares what the driver reads with the ledger, object by object,
// and keeps only the keys that differ:
//
//	Driver.Observe ─▶ ledger.Review.See, Sweep ─▶ suspects
//	Driver.Get, or another Observe ─▶ Review.Confirm, Accept ─▶ drift, planned for repair
//
// An audit runs on its caller's goroutine, concurrently with everything else; a lock that is held
// for some 50 µs at a time guards the ledger. It ignores keys that were planned since
// it began. A second read of the other differing keys decides, so drift is what two
// reads agree on. Ports of drifted objects are reported when they are right again
// (Repaired): connections that began in between may have reached a wrong endpoint.
//
// If the ledger is wrong nevertheless, ops fail. After ConflictError the keys of those
// ops are read, the ledger is corrected, and the ops are planned again in the same
// Sync; their ports count as damaged. After ErrUnknown the next Sync reads the keys
// before it writes anything else; a driver without Limits.Get is read as a whole.
//
// A read ends with its context, after ReadLimit at the latest. If a driver does not
// return, its results are ignored and it is not read again before it does; ops
// continue.
//
// # A new backend
//
// core/test/table is a whole one, for a made-up kernel; example_test.go drives it. "Add a backend" in
// .github/CONTRIBUTING.md is the guide.
package dataplane
