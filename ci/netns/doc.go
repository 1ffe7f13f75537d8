// SPDX-License-Identifier: Apache-2.0

// Package netns runs the scenarios of ci/scenarios on the real kernel: the
// little world as network namespaces (linux/netns), a proxy on its node, and
// real connections for every row of the packet tables.
//
//	Scenario ──▶ inventory ──▶ lab ──┬── servers: every endpoint there is
//	    │                            └── Proxy on the node, reading a folder
//	    └─ for each step: change the folder, wait for the proxy, judge the rows ──▶ Report
//
// A row is judged by who answers and whom the server saw: all expected
// endpoints must be reached and never another one, the client's address must
// arrive, or the node's, refusals must be quick, and silence must last.
package netns
