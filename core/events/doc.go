// SPDX-License-Identifier: Apache-2.0

// Package events decides which Kubernetes Events are written: about the Node,
// and about Services when their state changes. It does no I/O.
//
//	engine, servers ──Event──▶ Recorder.Add ──▶ queue ──Record──▶ Sink (API server, log)
//	                           never blocks   merges, limits
//
// Events are for people who run kubectl describe, and cost an API server that
// may be in trouble already. So equal ones are merged into a series, each object
// and the whole have a budget, what waits is bounded, and what cannot be written
// in a few attempts is given up: the log and the metrics have it all.
package events
