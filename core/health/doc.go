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
// only, with limits on time, size and number of connections. At the limit a connection of
// the address that has most is closed for a new one, an idle one first, then one that does not
// read its answer, so that no address locks out others.
package health
