// SPDX-License-Identifier: Apache-2.0

// Package events decides which Kubernetes Events are written: about the Node,
// and about Services when their state changes. It does no I/O.
//
//	engine, servers ──Event──▶ Recorder.Add ──▶ queue ──Record──▶ Sink (API server, log)
//	                           never blocks   merges, limits
//
// Events are for people who run kubectl describe, and cost an API server that may be
// in trouble already. So equal ones are merged into a series, there are budgets per
// object and in total, which namespaces share fairly, the queue is bounded, and Events that cannot be written in a
// few attempts are dropped: the logs and metrics are complete.
package events
