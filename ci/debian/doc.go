// SPDX-License-Identifier: Apache-2.0

// Package debian boots small Debian machines for tests: systemd as the first
// process of namespaces of its own, on a root that is cached and never changed.
//
//	root ──▶ ~/.cache/tandem/debian-…   unpacked once by debootstrap
//	boot ──▶ unshare: mount, pid, network, host name, ipc, cgroup
//	            └─ overlay: the cached root below, memory above
//	                 └─ /lib/systemd/systemd
//
// It needs root: systemd creates control groups and device nodes. The machine has no
// network but its loopback, sees the kernel's /sys but cannot write it, and is gone
// when it is closed, or when the test ends however that happens.
package debian
