// SPDX-License-Identifier: Apache-2.0

// Package linux holds the data planes of Linux. It has no code itself; this page
// shows its folders and who may import whom.
//
//	modes          nftables    iptables    ipvs                userspace
//	                  │           │         │                    │
//	languages        nft       xtables    virtualserver        nft or xtables
//	                  │                   ipset, xtables       conntrack
//	the kernel     netlink: for nft, ipset and conntrack
//	beside them    host  netns
//
// The modes:
//
//	nftables   maps and shared chains in one table
//	iptables   kube-proxy's chain names through iptables-restore
//	ipvs       virtual servers, ipsets, a constant set of rules
//	userspace  redirects to the relays of core/relay
//
// The languages, and what else there is:
//
//	nft        the nftables language: sets, chains, statements; text, encode, read,
//	           evaluate; batch; driver
//	xtables    the iptables language: rule text, parse, evaluate; save and restore;
//	           variants and the lock
//	ipset      sets of the kernel's ipset module; their text
//	virtualserver  virtual servers, destinations and schedulers of IPVS;
//	           their text, and which one the kernel finds for a packet
//	conntrack  deletes stale flows (core/flows.Table)
//	netlink    messages, attributes, batches bounded in bytes, the socket, errno to
//	           errors
//	host       sysctls, modules, addresses and devices of this machine
//	netns      network namespaces; for tests and the demo
//
// A mode imports languages, host and core, never another mode. Languages import netlink,
// xtables and conntrack also host, xtables nft, and nothing of a mode: a kernel quirk is
// handled in one place. Everything
// that can be pure is: only files that make system calls end in _linux.go, so that
// compilers, goldens and simulators run on any system. Nothing here imports windows
// or platform; platform chooses the mode.
package linux
