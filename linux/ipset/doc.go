// SPDX-License-Identifier: Apache-2.0

// Package ipset is a client of the kernel's ipsets over netlink: it needs no ipset
// binary. It supports the few types of sets that Tandem uses, and marks (skbinfo),
// which vishvananda/netlink does not.
//
//	set.go         Set, Entry, Change, and their text for ipset
//	message.go     to netlink messages and back
//	conn_linux.go  commands to the kernel, through linux/netlink
//
// The numbers are those of include/uapi/linux/netfilter/ipset/ip_set.h, protocol
// 6, which kernels since 2.6.39 support.
package ipset
