// Package userspace is the userspace mode on Windows: the addresses of Services
// are put on an adapter through iphlpapi, and relays (core/relay/direct) listen
// on them.
//
//	Service address ──CreateUnicastIpAddressEntry──▶ adapter ◀── relay listens
//
// The adapter is that of the containers' network where there is one, as
// containers reach nothing else by their default route; on other machines it is
// the loopback adapter, and Services are for the machine itself.
//
// Addresses are removed when the proxy ends, since nobody serves them then. Those
// that a crash left are known by their lifetime, and taken over or removed at
// the next start: Windows keeps nothing else with an address that could tell
// whose it is.
package userspace
