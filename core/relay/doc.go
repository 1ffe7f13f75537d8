// Package relay is the userspace data plane: it accepts connections to a
// Service and carries them to an endpoint, on any system and without help of
// its kernel.
//
//	            Server
//	              │ Listen(proto, address, Policy)
//	client ──▶ Relay ──▶ Policy.Answer(origin, client) ──▶ balancer ──▶ endpoint
//	              │                                           │ does not answer?
//	              │                                           └──▶ the next one
//	              ├── TCP: a connection is two directions, half-close kept
//	              └── UDP: a session for each client, ends when idle
//
// What a proxy in the kernel cannot do, a relay can: an endpoint that does not
// answer costs its client a short wait instead of the connection. What it
// cannot do: endpoints see this host's address, not the client's, and all that
// it carries ends with the process.
//
// Goroutines carry TCP on any system, two for each connection. On Linux they
// get only what takes waiting; the rest is with a loop for each processor, as
// in nginx or HAProxy, for two thirds of the processor time:
//
//	accept ──▶ loop: the first endpoint, and streams that come and go at once
//	             ├── endpoint does not answer ──▶ goroutine: tries the others
//	             ├── the other side has no room ─▶ goroutines: wait for it
//	             └── a stream does not stop   ──▶ goroutines: splice
//
// So a loop knows no timer but the first try's, no buffer but one of its own, and
// no back pressure. A connection that went to goroutines stays there.
//
// No Service port takes all connections that the process has descriptors for: each
// may hold as many as it leaves free (slots.go). Ends that have gone without a word
// are found by keep-alive within 15 minutes (accept.go).
//
// There is one goroutine more for each Relay and for each UDP session.
// Server.Close ends and awaits all of them. An idle connection holds no buffer
// and, on Linux, long transfers are spliced from socket to socket within the
// kernel.
//
// A relay sends nobody to a relay of its own server: that would be a circle. Where
// rules lead clients to relays they must let what carries Options.Mark pass.
//
// The parts:
//
//	policy.go     what a Relay answers to whom
//	balance.go    which endpoint is next; affinity.go: which one a client had
//	server.go     Server and Relay: what is open, and its end; drain.go: an end
//	              that nobody notices
//	accept.go     TCP clients; listener.go: where they come from; dial.go: the
//	              endpoint that answers; own.go: those that are none; mark.go: what
//	              tells packets to endpoints
//	transfer.go   both directions of a connection; read.go: with small buffers, or
//	              on Linux without any
//	engine.go     Linux' loops; loop.go: one of them; link.go: a connection there;
//	              give.go: its way to goroutines; socket.go, call.go: of sockets
//	udp.go        UDP clients; session.go: one of them
//	slots.go      room for connections; scarcity.go: when there is none
package relay
