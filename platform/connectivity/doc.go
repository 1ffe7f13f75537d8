// SPDX-License-Identifier: Apache-2.0

// Package connectivity tests a proxy with real connections: every kind of frontend,
// from every origin, under every policy (Rig.Test), and connections that must survive
// disturbances of the proxy (Rig.Disrupt).
//
//	Site ──▶ Rig ──┬── backends and clients in network namespaces (linux/netns)
//	 made          └── a proxy: a process of its own on a node of its own, or the
//	 Services          one that runs on this node
//	              Rig.Test ──▶ Report        Rig.Disrupt ──▶ Disruption
//
// What must happen is what the proxy under test explains (tandem explain), of Services
// that are known beforehand: an answer about another Service, or none, is a failure.
// Close removes everything that a Rig makes: the namespaces with their links, the
// manifests, and the process that it has started. After a signal that cannot be caught
// the kernel removes links and process; the manifests of a folder that others follow stay.
package connectivity
