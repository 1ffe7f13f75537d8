// SPDX-License-Identifier: Apache-2.0

// Package windows is the home of the Windows data planes: load balancers of HNS
// (hns), with an emulator of it for tests (test/hnsemu) and experiments that say what a
// real one does (contract), and relays in user space (userspace). The data planes implement
// the same contract (core/dataplane) as those under linux, and the two never import each
// other. What Tandem asks a node about itself is in host, and what it writes on one is in
// folders that are closed to others (folders).
package windows
