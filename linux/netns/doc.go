// SPDX-License-Identifier: Apache-2.0

// Package netns builds a little network of Linux network namespaces around one
// node: its pods, the world outside and the other nodes with their pods, with
// servers that tell who they are and clients that tell what became of a
// connection. `tandem demo` shows itself in it, and tests judge real kernels
// with it.
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
// Everything outside a node's box has its default route to the node, so that
// any virtual address reaches it, and answers come back through it. What the
// node has no route for it sends to outside, which stays silent for addresses
// it does not have. All links are routed; next hops and hardware addresses are
// fixed, so nothing ever waits for ARP, neighbour discovery or duplicate address
// detection.
//
// The namespaces have no names and are held by file descriptors only: when the
// process ends, however it does, the kernel removes them. It takes CAP_SYS_ADMIN
// over the user namespace, so root or a user namespace of one's own; see
// Available and UserNamespace.
package netns
