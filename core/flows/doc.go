// SPDX-License-Identifier: Apache-2.0

// Package flows finds the tracked flows that a change of the desired state
// makes stale, and has them deleted.
//
// Connection tracking decides about a flow once, at its first packet. A flow to an
// endpoint stays with it after the endpoint is gone, and a flow that began before its
// Service existed stays untranslated, as long as its client keeps sending. TCP
// clients notice and reconnect; a UDP client with a fixed source port loses its
// packets forever.
//
//	[]model.Delta ──Stale──▶ []Match ──▶ Cleaner ──one goroutine──▶ Table.Delete
//	                           (pure)     merges, retries            (linux/conntrack)
//
// A Match is a statement about one frontend: which flows to it are stale and which
// endpoints still serve it. Later statements about a frontend correct earlier ones, so
// that a cleanup that is queued or running never deletes a flow made by newer rules.
//
// Of UDP everything stale is deleted, as in kube-proxy. TCP and SCTP have handshakes:
// their stale flows end by a reset, an abort or a time-out of their own, and a Port
// does not distinguish a deleted endpoint from an unready one, whose
// connections still work and must not be cut. But a TCP connection that has no answer
// from an endpoint that is gone is deleted (Handshakes), so that its client's next SYN
// goes to another one.
package flows
