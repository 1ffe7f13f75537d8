// SPDX-License-Identifier: Apache-2.0

// Package netlink is the wire format of netfilter's netlink families, and a
// socket for it: one codec for nf_tables, ctnetlink and ipset. It knows
// no message of theirs.
//
//	Writer, Batch ──▶ Socket ──▶ kernel
//	                              │
//	Messages, Attrs ◀─────────────┘
//
//	message.go       messages and attributes, read and written; requests that are sent
//	                 together, bounded in number and bytes
//	socket_linux.go  the socket; answers and errors; notices of a multicast group
//
// Netlink's own headers are in the byte order of the host, numbers inside
// attributes of netfilter nearly always in that of the network.
//
// The numbers are those of include/uapi/linux/netlink.h. They are spelled out because
// x/sys/unix has them for Linux only, and encoders and decoders are tested on any
// system.
package netlink
