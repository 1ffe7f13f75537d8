// SPDX-License-Identifier: Apache-2.0

// Package netns runs the scenarios of ci/scenarios on the real kernel: the nodes and
// pods as network namespaces (linux/netns), a proxy on the node, and real connections
// for every row of the packet tables.
//
//	Scenario ──▶ inventory ──▶ lab ──┬── servers: every endpoint there is
//	    │                            └── Proxy on the node, reading a folder
//	    └─ for each step: change the folder, wait for the proxy, judge the rows ──▶ Report
//
// A row is judged by the server that answers and the client address that it saw: all
// expected endpoints must be reached and no other one, with the client's address or
// the node's; rejects must be quick, and drops must stay without an answer.
package netns
