// SPDX-License-Identifier: Apache-2.0

// Package apparmor has an AppArmor profile for the unit and for the chart's pods:
//
//	tandem ──▶ /usr/share/doc/tandem/apparmor (installers/packages)
//	           /etc/apparmor.d/tandem, by hand ──▶ AppArmorProfile=-tandem of the unit
//	                                           ──▶ linux.appArmorProfile of the chart
//
// It is asked for, and nothing loads it by itself; the page "Security model" of the manual says
// how, and what it allows. Its test runs in a guest (ci/guest/run), as it changes the machine and
// few machines of developers have AppArmor: proxies of every mode program a Service, and cleanup
// removes it, without one denied access; what the profile leaves out is denied.
package apparmor
