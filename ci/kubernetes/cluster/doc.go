// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a control plane for tests: a real etcd and a real
// kube-apiserver in network namespaces of their own, and nodes that reach them.
//
//	┌─────────────────────────┐  kube-api  ┌──────────────────────────────┐
//	│ 172.31.0.1              ├────────────┤ node of a lab (linux/netns)  │
//	│  etcd ◀─ kube-apiserver │            │  the proxy under test        │
//	│         :6443, RBAC     ├──┐         └──────────────────────────────┘
//	└────────────▲────────────┘  └─ …further nodes
//	             │
//	     Client: this process, through a dialer that enters the namespace
//
// Nothing listens on the machine itself, so any number of clusters may run at once.
// Certificates are created at the start, in a folder of the caller. The programs end
// with this process, however that happens. There are no controllers: objects are only
// those that tests write.
package cluster
