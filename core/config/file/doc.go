// SPDX-License-Identifier: Apache-2.0

// Package file reads, writes and watches the file that kube-proxy is configured
// by: a KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1, in YAML or
// JSON.
//
//	text ──▶ Decode ──▶ assignments, each with its line ──▶ config.Build
//	              └───▶ problems:  values that no reader accepts
//	              └───▶ lapses:    kube-proxy overlooks them: unknown fields, duplicates
//
//	config.Config ──▶ Render ──▶ text, with or without explanations
//
// Which fields there are, and of what kind, is known to config.Settings alone.
// That these are kube-proxy's is tested against its own types
// (k8s.io/kube-proxy/config/v1alpha1). Files are not decoded into those: their decoder
// ends at the first wrong value, and has forgotten the line of each, which fields were set
// at all, and those that kube-proxy overlooks. Every one of them is reported here, with its line.
//
// Watch follows a file through whatever replaces it: an editor, a rename, or the
// switch of the link "..data" by which the kubelet updates a mounted ConfigMap.
// kube-proxy watches the file itself, and misses the latter
// (kubernetes/kubernetes#132877).
package file
