// SPDX-License-Identifier: Apache-2.0

// Package health serves health checks, metrics and status over HTTP.
//
//	Server(0.0.0.0:10256)   ─▶ Probes   /healthz /livez       load balancers, kubelets
//	Server(127.0.0.1:10249) ─▶ Pages    /metrics /healthz     Prometheus, people,
//	                                    /status /configz ...  `tandem status`
//	Checks  one listener for each healthCheckNodePort         load balancers
//
// Paths, codes, headers and JSON fields are those of kube-proxy 1.37, with more fields
// where Tandem knows more. Probes and Checks answer requests of any method as GET, as
// kube-proxy does: HAProxy's checks, for one, are OPTIONS. Unlike kube-proxy's, the pages answer
// GET and HEAD only, except for PUT /debug/flags/v, which sets the log level.
// Time, size and number of connections are limited. At the limit the client address with
// the most connections loses one for each new one: an idle one first, then one that does
// not read its answer. So no address locks out others.
package health
