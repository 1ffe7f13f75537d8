// SPDX-License-Identifier: Apache-2.0

// Package windows holds the Windows data planes: load balancers of HNS
// (hns), with an emulator of HNS for tests (test/hnsemu) and experiments that show what a
// real HNS does (contract), and relays in user space (userspace). They implement
// the same contract (core/dataplane) as those under linux; windows and linux never import each
// other. Package host reads facts about the node; folders makes folders that only
// administrators can change.
package windows
