// SPDX-License-Identifier: Apache-2.0

// Package health serves health checks, metrics and status over HTTP. It only reads.
//
//	Server(0.0.0.0:10256)   ─▶ Probes   /healthz /livez       load balancers, kubelets
//	Server(127.0.0.1:10249) ─▶ Pages    /metrics /healthz     Prometheus, people,
//	                                    /status /configz ...  `tandem status`
//	Checks  one listener for each healthCheckNodePort         load balancers
//
// Paths, codes, headers and JSON fields are those of kube-proxy 1.36, with more
// fields where we know more. Unlike kube-proxy's, all servers answer GET and HEAD
// only, with limits on time, size and number of connections: at the limit the longest
// idle connection is closed, so that silent clients do not lock out others.
package health
