// Package dataplane is the one implementation of "make the kernel match": every
// mode brings a Compiler, which says what objects a port needs, and a Driver,
// which creates, replaces and deletes objects; New joins them to a Backend.
//
//	[]model.Delta ─▶ Update ─▶ Compiler.Port ─▶ objects ─▶ ledger (want)
//	                                                          │ Plan
//	kernel, HNS ◀── Driver.Commit ◀────── batches of ops ◀────┤
//	     │                │ one result for each op            │
//	     │                └─────────────── Settle ───────────▶│ (have)
//	     └── Driver.Observe ── Adopt at start, Audit later ──▶┘
//
// A change costs what its ports cost. Nothing here walks all ports but a change
// of the host, a repair after drift, and requests of users. The data plane is
// read at the start and by Audit, never for a change.
package dataplane
