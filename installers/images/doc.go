// SPDX-License-Identifier: Apache-2.0

// Package images has the content of the container images besides the program:
// debian.sha256 pins the Debian packages of the image with iptables. `make dist`
// builds the images, without a daemon and the same bit for bit (ci/dist).
package images
