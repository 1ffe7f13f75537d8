// SPDX-License-Identifier: Apache-2.0

// Package systemd is the unit that runs tandem under systemd: what `tandem
// install` writes and what the packages contain.
//
//	tandem.service ─Unit──▶ /etc/systemd/system/tandem.service     (tandem install)
//	                   └──▶ /usr/lib/systemd/system/tandem.service (deb, rpm)
//	legacy-iptables.conf ──▶ tandem.service.d/, by hand, where iptables is the legacy one
//
// The work that needs full root, sysctls and the kernel's out-of-memory score, is
// a step of its own before the proxy starts (run --init-only). When it fails the proxy
// starts all the same: in a container the parameters are the host's. The proxy itself
// keeps CAP_NET_ADMIN alone and sees a file system that it cannot write. It is root
// without CAP_DAC_OVERRIDE, and so cannot enter the closed home of a user: Readable tells
// `tandem install`, which rejects such files.
package systemd
