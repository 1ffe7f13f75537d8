// SPDX-License-Identifier: Apache-2.0

// Package userspace is the userspace mode on Windows: the addresses of Services are
// assigned to an adapter through iphlpapi, and relays (core/relay/direct) listen on
// them.
//
//	Service address ──CreateUnicastIpAddressEntry──▶ adapter ◀── relay listens
//
// The adapter is that of the container network where there is one, as containers
// reach nothing else by their default route; on other nodes it is the loopback
// adapter, and Services are reachable from the node only.
//
// Addresses are removed at shutdown, since no relay serves them then. Those that a
// crash left are recognised by their lifetime, and adopted or removed at the next
// start: Windows stores nothing else with an address that could mark its owner.
package userspace
