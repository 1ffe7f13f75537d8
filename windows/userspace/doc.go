// SPDX-License-Identifier: Apache-2.0

// Package userspace is the userspace mode on Windows: the addresses of Services are
// assigned to an adapter through iphlpapi, and relays (core/relay/direct) listen on
// them.
//
//	Service address ──CreateUnicastIpAddressEntry──▶ adapter ◀── relay listens
//
// The adapter is that of the container network, if there is one: it is all that containers
// reach by their default route. On other nodes it is the loopback
// adapter, and Services are reachable from the node only.
//
// Addresses are removed at shutdown, since no relay serves them then. Those that a
// crash left are recognised by their lifetime, the only property of an address that can
// mark its owner, and adopted or removed at the next start.
package userspace
