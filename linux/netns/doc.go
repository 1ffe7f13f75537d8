// SPDX-License-Identifier: Apache-2.0

// Package netns builds a small network of Linux network namespaces around one node:
// its pods, machines outside the cluster, and other nodes with their pods. Its
// servers answer with their own address and the client's; its clients report what
// happened to a connection. `tandem demo` and the tests on real kernels run in it.
//
//	 pod…           pod…                          every box is a namespace
//	┌────┐         ┌────┐
//	│eth0│         │eth0│
//	└─┬──┘         └─┬──┘
//	 pod1           pod2         eth1  ┌────────────────────────────┐
//	┌─┴──────────────┴──────────────┬──┤ others: node-2, node-3 and │
//	│ node   forwards; here the     │  │ their pods                 │
//	│        proxy under test works │  └────────────────────────────┘
//	└──────────────┬────────────────┘
//	             eth0
//	┌──────────────┴────────────────┐
//	│ outside: all other machines   │
//	└───────────────────────────────┘
//
// Every other namespace has its default route to the node, so that packets to any
// virtual address and the answers pass through it. The node's default route leads to
// outside, which does not answer for addresses that it does not have. All links are
// routed; next hops and hardware addresses are fixed, so nothing waits for ARP,
// neighbour discovery or duplicate address detection.
//
// The namespaces have no names and are held by file descriptors only, so the kernel
// removes them when the process ends, however that happens. Creating them needs
// CAP_SYS_ADMIN in the user namespace, that is root or a user namespace of its own;
// see Available and UserNamespace.
package netns
