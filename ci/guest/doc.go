// SPDX-License-Identifier: Apache-2.0

// Command guest runs a program on a kernel of its own, so that tests of features that
// the machine's kernel lacks, such as IPVS, run anywhere:
//
//	go test -exec "/path/to/guest -kernel 6.12" ./linux/ipvs
//
//	guest ─▶ engine ─▶ kernel ─▶ init.sh: /proc, /sys, /run, modules on demand
//	  ▲                             └─▶ the program, in the directory guest was started in
//	  └───────── output, exit code ◀────┘
//
// There are two engines. UML is Debian's user-mode Linux: an ordinary process and
// one kernel, whose root is the host's, read-only; some CPUs have more registers
// than it can save. QEMU boots any of the kernels that ci/setup/guest has put into
// the cache; its root is an initramfs of the host's tools, this source tree and the
// kernel's modules for networks. With TANDEM_GUEST=qemu or uml there is only that
// one; otherwise UML is taken where a probe shows that it runs and no kernel is
// named, else QEMU.
//
// Neither needs privileges or virtualization, and QEMU uses KVM only where a probe
// shows that it works. Without KVM the guest's clock counts executed instructions,
// and idle time is skipped: the program sees a machine of constant speed, however
// slow or busy the host is, and its time limits hold.
//
// The guest cannot change the host. Its network is isolated. Guests that run at once
// share memoryLimit and the processors: one that would exceed them waits. Times
// measured inside cannot be compared with those outside.
package main
