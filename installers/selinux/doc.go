// SPDX-License-Identifier: Apache-2.0

// Package selinux has an SELinux policy for the unit:
//
//	tandem.cil ──▶ /usr/share/doc/tandem/tandem.cil (installers/packages)
//	               semodule -i tandem.cil, by hand ──▶ systemd starts the program in the domain tandem_t
//
// Nothing loads it by itself; the page "Security model" of the manual says how, and what it allows.
// Its test runs in a guest (ci/guest/run), with Debian's reference policy and this module in it, enforced:
// proxies of every mode, started as systemd starts them, program a Service, and cleanup removes it,
// without one denied access; what the policy leaves out is denied.
package selinux
