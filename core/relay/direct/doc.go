// SPDX-License-Identifier: Apache-2.0

// Package direct is the userspace mode without rules: relays listen where clients
// connect.
//
//	frontend ──Placement──▶ address and port ──▶ relay.Policy by origin ──▶ endpoint
//	               │
//	               ├── Loopback: 127.x.y.z for a.x.y.z, on any system, without privileges
//	               └── Adapter:  the address itself, assigned to an adapter (windows/userspace)
//
// A relay decides by the client's address, after the connection is established.
// What it cannot do is a gap: clients that policy rejects or drops are reset. A
// frontend without endpoints has no listener, and the system rejects connections;
// addresses of a ServiceCIDR that no Service has are left to the system's routes.
// An endpoint that is one of these listeners, by the address of another Service or
// by a node port, is skipped: two Services with each other as endpoints would be a
// forwarding loop.
//
//	compile.go   the objects: the host, addresses, listeners; where frontends listen; ports to
//	             objects (Compiler); objects as text, and a packet through them
//	driver.go    objects to sockets (Driver): any system, no privileges of its own
//	nodeport.go  node ports on loopback addresses, for the other modes; the mode for
//	             developers, with its table of addresses
package direct
