// Command bench measures Tandem beside kube-proxy on one API server, in one
// run: each proxy in turn on a node of its own, several rounds, in an order that
// rotates.
//
//	kube-apiserver ──watch──▶ proxy ──▶ rules of the node
//	      ▲                                  │
//	   a slice is written             connections from a pod, all the time:
//	      │                           the first to a new endpoint, the last to an old one
//	      └── acknowledged: time 0 ◀─────────┘
//
// What is measured is what a client of a Service sees, never what a proxy says
// of itself. All endpoints are real: one server has all their addresses. Every
// write replaces all endpoints of one Service, so that the next connection shows
// on which side of the change it is.
package main
