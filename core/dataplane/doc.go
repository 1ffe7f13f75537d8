// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the one implementation of "make the kernel match": every
// mode brings a Compiler, which says what objects a port needs, and a Driver,
// which creates, replaces and deletes objects; New joins them to a Backend.
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
// The first reading is believed. An audit only suspects by its reading: objects
// come and go meanwhile, and a dump beside writes misses neighbours of those. It
// streams what the driver reads past the ledger, and keeps nothing but the keys
// that differ:
//
//	Driver.Observe ─▶ ledger.Review.See, Sweep ─▶ suspects
//	Getter.Get, or another Observe ─▶ Review.Confirm, Enter ─▶ drift, planned for repair
//
// An audit runs on its caller's goroutine beside everything else; a lock that is
// held for some 50 µs at a time guards the ledger. Keys that were planned
// since it began are ignored by it: the ledger knows better. A second read
// at what is left decides, so drift is found by two looks that agree. Ports of
// drifted objects are reported when they are right again (Repaired): connections that
// began in between may have reached a wrong endpoint.
//
// A ledger that is wrong in spite of that shows by ops that fail. After
// ErrConflict the keys of those ops are read, the ledger is corrected, and
// the ops are planned anew in the same Sync; their ports count as damaged. After
// ErrUnknown the keys are looked at by the next Sync, before anything else is
// written; a driver that is no Getter is read as a whole then.
//
// A reading ends with its context, after ReadLimit at the latest. A driver that
// does not return from it is not listened to any more, and is not read again
// before it does; ops go on.
//
// # A new backend
//
// The smallest one that is complete is for tests: a compiler and its simulator
// are in core/conformance/fake_test.go, a driver in core/dataplane/memory. What
// a backend has to know:
//
//   - The compiler reads finished Actions from model.Port and decides no policy.
//     Where pods cannot be recognised from others, FromPod has FromOutside's Action.
//   - A compiler whose objects number a pool's endpoints is a Slotter, and writes
//     them in the pool's order: the order is stable, and after a restart it is
//     the one that is installed. Without Slotter the order means nothing.
//   - The simulator gets objects, and of the host only what a kernel knows by
//     itself: addresses and interfaces. How pods are recognised, and which
//     addresses node ports have, it must find in objects: those of Base.
//   - conformance.Run judges both in the backend's TestCorpus. With a Golden, the
//     flag -update writes what ports compile to into ci/scenarios, as want/MODE.
//     Packet tables are the same for all.
//   - Mode.Plan shows the skeleton, too: with no ports there are objects and text.
//   - Counters that kube-proxy has in one mode only are in core/metrics; those of
//     iptables rules come from a RuleCounter. All other metrics come by themselves.
//   - A mode reads the section iptables of kube-proxy's file for its periods, and
//     every setting that names no mode, until core/config/setting.go says else.
//   - One line in platform.Modes makes it known: flags, auto, doctor, switch and
//     cleanup take it from there.
package dataplane
