// SPDX-License-Identifier: Apache-2.0

// Package health serves what Tandem knows of itself over HTTP. It only reads.
//
//	Server(0.0.0.0:10256)   ─▶ Probes   /healthz /livez       load balancers, kubelets
//	Server(127.0.0.1:10249) ─▶ Pages    /metrics /healthz     Prometheus, people,
//	                                    /status /configz ...  `tandem status`
//	Checks  one listener for each healthCheckNodePort         load balancers
//
// Paths, codes, headers and JSON fields are those of kube-proxy 1.36, with more
// fields where we know more. Unlike there, all servers answer GET and HEAD only,
// give no client much time or room, and hold a bounded number of connections:
// when that is reached, the longest idle one is closed, so that a
// thousand silent clients do not lock out the others.
package health
