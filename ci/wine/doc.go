// SPDX-License-Identifier: Apache-2.0

// Package wine runs the real Windows program, cross-compiled, under Wine: with the
// real libraries and real calls into DLLs. Thin test DLLs replace those of Windows
// and forward each call to the HNS emulator (windows/test/hnsemu) in the test.
//
//	go test ──▶ emulator ◀── loopback ── computenetwork.dll ◀── hcsshim ◀── tandem.exe
//	   │                                                                      ▲
//	   └── manifests, restarts, faults ───────────────────────── wine64 ──────┘
//
// TestCluster feeds the program from a real kube-apiserver (ci/kubernetes/cluster)
// instead: Wine and the emulator then run in the network namespace of a node.
//
// TestHcsshim runs Microsoft's own tests of package hcn on the emulator, TestWinkernel
// kube-proxy's own proxier (ci/kubernetes/upstream/winkernel) for comparison, after a start,
// changes and churn, and while HNS does not create, delete or modify load
// balancers; both end with their score. testdata/winkernel.txt has every property in which
// the two proxies differ, both values and the reason; go test ./ci/wine -run TestWinkernel
// -update writes it anew.
//
// It proves that the program starts, finds its network, programs and adopts, survives
// restarts of itself, of HNS and of the API server, shows what HNS holds (hns dump,
// hns diff), releases what it holds, and cleans up; that it is installed, started,
// stopped and taken away as a service, by itself and by its MSI; and that it runs as
// the manifests' HostProcess container. Of a real HNS it proves only the calls: see
// windows/hns. Wine keeps no recovery actions, no Event Log and no access lists, so
// that of these the tests see only that asking for them does no harm.
//
// It needs wine64 and gcc-mingw-w64-x86-64 (ci/setup) and is skipped where they
// are missing. The Wine prefix is made once, in the user's cache folder.
package wine
