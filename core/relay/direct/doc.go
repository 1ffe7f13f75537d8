// Package direct is the userspace mode without rules: relays listen where
// clients connect.
//
//	front ──Placing──▶ address and port ──▶ relay.Policy by origin ──▶ endpoint
//	            │
//	            ├── Loopback: 127.x.y.z for a.x.y.z, on any system, without privileges
//	            └── Adapter:  the address itself, put on an adapter (windows/userspace)
//
// The relay sees who connects and decides by the address. What it cannot decide
// before a connection is made is declared: it resets clients that should be
// refused or get no answer. Where nobody is to be served there is no listener, and
// the system refuses by itself, or sends elsewhere what is for an address in a
// ServiceCIDR that no Service has: that is not ours to drop. An endpoint that is a
// listener here, by the address of another Service or by a node port, is one that
// does not answer: two Services that are each other's endpoints would be a circle.
//
//	object.go    what there is: the host, addresses, listeners
//	compile.go   ports to objects (Compiler); placing.go: where fronts listen
//	driver.go    the process (Driver): any system, no privileges of its own
//	loopback.go  the way for developers; its table of addresses
package direct
