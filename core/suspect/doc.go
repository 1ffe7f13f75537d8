// SPDX-License-Identifier: Apache-2.0

// Package suspect decides which endpoints have stopped answering, so that new
// connections pass them over. It is pure: observations and a clock go in, suspects
// come out. When a node fails, Kubernetes takes 40 s or more to mark its endpoints; this takes
// less than one.
//
//	linux/conntrack ─┐ flows without an answer      ┌─▶ suspects ──▶ core/track ──▶ core/resolve
//	core/relay      ─┼────────────▶ Judge.Look ─────┤
//	own SYNs        ─┘                              └─▶ next look, SYNs to send, log lines
//
// A case is opened for a node when at least two clients wait for it, and decided
// when they have waited for as long as an answer may take:
//
//	an endpoint of the node has answered a new flow, or our SYN,    it is alive
//	on any of its ports
//	the clients have never been answered by it, as far as is known  a policy drops them
//	no endpoint of any other node answers                           our own network fails
//	several nodes with more than a third of the remote endpoints   our own network fails
//	otherwise                                                       it is silent: suspects
//
// All endpoints of a silent node become suspects together, or only the silent ones
// where another one of the node answers. A suspicion lasts as long as SYNs, after 1 s and then ever
// less often up to every 10 s, are not answered either; after some minutes clients try.
// No endpoint is passed over that is needed: core/resolve keeps half of each pool.
//
// The clients of a case that ends well are disregarded for a while: their
// packets are dropped elsewhere, and say nothing about the endpoint.
package suspect
