// SPDX-License-Identifier: Apache-2.0

// Package suspect decides which endpoints have stopped answering, so that they are ejected:
// new connections go to others. It is pure: observations and a clock go in, decisions
// come out. When a node fails, Kubernetes takes 40 s or more to mark its endpoints; this takes
// less than one.
//
//	linux/conntrack ─┐ new flows, and which of      ┌─▶ ejected addresses ──▶ core/track ──▶ core/resolve
//	core/relay      ─┼─them have an answer─▶ Judge ─┤
//	own SYNs        ─┘                              └─▶ SYNs to send, log lines, the next look
//
// An address is ejected on evidence about that address alone. All must hold:
//
//	connections of two clients or more to it have no answer
//	no connection that began later has one, and no earlier one got its answer since
//	it has answered a SYN of this node before, and answers none on any of its ports now
//	an endpoint of the same Service on another node answers, where there is one
//
// So a client whose packets are dropped on their way, by a policy or because they are malformed,
// ejects nothing: the endpoint answers Tandem's SYN. An endpoint behind a policy that drops packets
// from nodes has never answered one, and is not checked. What the EndpointSlices of other
// namespaces say of an address, and which node they name, plays no part.
//
// An ejection lasts until the address answers one of Tandem's SYNs, which come after 1 s and then
// ever less often up to every 10 s, or is no endpoint any more; after some minutes clients try. No
// endpoint is ejected that is needed: core/resolve keeps half of each pool.
//
// A namespace of whose endpoints in use more than a third, on several nodes, is silent has
// none ejected: the fault is more likely this node's network. Namespaces share the tables: who
// has more than others in a full one loses its oldest entries first.
//
// judge.go has the cycle, address.go what is known of one address, table.go who gets a place,
// observe.go what a Judge is told and may ask.
package suspect
