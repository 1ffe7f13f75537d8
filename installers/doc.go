// SPDX-License-Identifier: Apache-2.0

// Package installers is the home of every way to install Tandem: the systemd
// unit, the Windows service and MSI, packages, images and Kubernetes manifests,
// one folder each with its test. `make dist` builds all of it (ci/dist): packages
// and images by itself, the rest by running each executable installers/*/dist with
// the folder to fill and the version.
package installers
