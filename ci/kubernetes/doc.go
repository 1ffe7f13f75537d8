// SPDX-License-Identifier: Apache-2.0

// Package kubernetes tests Tandem with a real API server, as a user's cluster
// has it: the program itself, started with a kubeconfig and the rights of
// system:node-proxier, on the node of a lab (linux/netns).
//
//	scenario ──▶ folder ──▶ objects.Server ──▶ kube-apiserver (cluster) ──watch──▶ tandem run
//	                                                                                  │
//	                                    judge (ci/netns) ◀── packets on the node ◀────┘
//
// The folder upstream builds what is needed, cluster runs it, and bench measures
// Tandem and kube-proxy on it. The folder gateway names the module that has the
// definitions of the Gateway API, which the API server gets for scenarios with routes.
package kubernetes
