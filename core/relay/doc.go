// SPDX-License-Identifier: Apache-2.0

// Package relay is the userspace data plane: it accepts the connections of a Service
// and relays them to an endpoint, on any operating system.
//
//	            Server
//	              │ Listen(proto, address, Policy)
//	client ──▶ Relay ──▶ Policy.Answer(origin, client) ──▶ balancer ──▶ endpoint
//	              │                                           │ does not answer?
//	              │                                           └──▶ the next one
//	              ├── TCP: a connection is two directions, half-close kept
//	              └── UDP: a session for each client, ends when idle
//
// Unlike a proxy in the kernel, a relay retries: an endpoint that does not answer
// costs its client a short wait instead of the connection. On the other hand
// endpoints see this host's address, not the client's, and all connections end
// with the process.
//
// On any system goroutines can serve TCP, two for each connection. On Linux they
// serve only connections that have to wait; all others are served by an epoll loop
// per CPU, as in nginx or HAProxy, with two thirds of the CPU time:
//
//	accept ──▶ loop: the first endpoint, and streams with pauses
//	             ├── the endpoint does not answer ──▶ goroutine: tries the others
//	             ├── the other side has no room ────▶ goroutines: wait for it
//	             └── a stream does not pause ───────▶ goroutines: splice
//
// So a loop has no timers except those of the first tries, one buffer, and no back
// pressure. A connection that was handed over to goroutines stays there.
//
// Each Relay and each UDP session has one goroutine more. Server.Close ends and
// awaits all of them. An idle connection holds no buffer, and on Linux long
// transfers are spliced from socket to socket within the kernel.
//
// File descriptors are bounded: a Service port may hold as many connections as it
// leaves free (shared.go); keep-alive detects vanished peers within 15 minutes;
// timeouts end idle connections (relay.go). Beyond that TCP clients wait, and
// a UDP client takes the place of the session that is idle longest (udp.go).
//
// A relay never connects to a relay of its own server, which would be a forwarding
// loop. Rules that lead clients to relays must let packets with Options.Mark pass.
//
// The files:
//
//	policy.go      Policy: what clients of a Relay get, and the endpoint it chooses; the clients
//	               with session affinity, whose room namespaces share; which endpoints answer
//	shared.go      what all parts use: how many connections each Service port may hold,
//	               back-off, own listeners, counters, connections for a monitor
//	tcp.go         a client accepted, an endpoint connected, a connection served by goroutines
//	udp.go         clients and sessions of UDP
//	relay.go       Relay, one address; Server: relays and connections, drain, timeouts and
//	               close; options and errors of sockets
//	loop_linux.go  epoll; a connection there; all loops
package relay
