// SPDX-License-Identifier: Apache-2.0

// Package kubernetes holds the manifests that run Tandem on the nodes of a
// cluster, Linux and Windows, in kube-proxy's place.
//
//	chart/ ──render──┬──▶ tandem.yaml           kubectl apply -f
//	                 ├──▶ kustomize/            kubectl apply -k
//	                 └──▶ testdata/own.yaml     other values, for tests
//
// The Helm chart is the one source; `go run .` in render writes the rest, and its
// test keeps it so. The manual (core/manual) describes how to swap kube-proxy for Tandem, and
// back; guides/ has kube-proxy's configuration of distributions. Alerts and a dashboard are in
// chart/files: the tests here compare the metrics that they use with core/metrics.
//
// What the pods may do is as little as can be. On Linux an init container with
// all rights sets kernel parameters (`tandem run --init-only`), and the proxy
// itself has CAP_NET_ADMIN, a read-only root, no way to more, and the runtime's
// seccomp profile. On Windows HNS is for the system's account only, so that the
// pod is a HostProcess one (KEP-1981). The role is system:node-proxier's without
// Endpoints.
//
// With no values at all the pods read the ConfigMap kube-proxy, as kubeadm made
// it. It also has the API server's address, not that of a Service: nothing
// else serves Services. Where there is none, config.existing is empty and
// config.apiServer names the server.
//
// Tests: ci/kubernetes lets a real API server judge every object and runs the
// Linux pod by hand; that of Windows was run on no cluster.
package kubernetes
