// SPDX-License-Identifier: Apache-2.0

// Command cluster runs a whole Kubernetes cluster on this machine, and upstream's own
// network tests in it: etcd, the control plane, kubelets, containerd, CNI plug-ins and
// CoreDNS, with Tandem or kube-proxy as the Service proxy.
//
//	cluster up ──▶ build, root      parts into the cache: programs, a Debian
//	           ──▶ images           OCI archives made by hand
//	           ──▶ machines         namespaces with a process 1 each
//	           ──▶ install          CoreDNS, the chart of `make dist`
//
//	 control 172.18.0.10            node-1 172.18.0.11      node-2 …
//	┌──────────────────────────┐   ┌──────────────────────┐
//	│ etcd, kube-apiserver,    │   │ kubelet ─ containerd │
//	│ kube-controller-manager, │   │  pods 10.244.1.0/24  │
//	│ kube-scheduler, cloud    ├─┬─┤  tandem              │
//	│ e2e.test                 │ │ └──────────────────────┘
//	└───────▲──────────────────┘ └─ br0, in control's network namespace
//	        │ a listener on 127.0.0.1, handed in: kubectl, helm
//
// A machine is a network, mount, UTS, IPC, PID and control group namespace on an overlay
// of one Debian; its process 1 (machine_linux.go) ends all in it. Nothing is made in the
// namespaces of this machine but the state folder and control groups of the same name,
// which `cluster down` finds and removes, whatever became of the command that made them.
//
// Read plan.go first, then up_linux.go.
package main
