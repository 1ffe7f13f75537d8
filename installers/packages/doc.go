// SPDX-License-Identifier: Apache-2.0

// Package packages has the content of the deb, rpm and apk packages: nfpm.yaml
// lists the files, postinstall, preremove and postremove run on the node, with systemd
// or OpenRC. `make dist` builds them (ci/dist); the test here installs the deb on a real
// systemd. No test has OpenRC: that of ci/dist reads what the apk contains, and runs its
// scripts with stand-ins for OpenRC's commands.
//
//	install   enabled; started if /etc/tandem/config.yaml is there and right
//	upgrade   restarted if the new version takes the configuration, else the old one runs on
//	remove    stopped, and its rules are removed
//	purge     state is removed; the administrator's configuration is kept
package packages
