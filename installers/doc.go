// Package installers is the home of every way to install Tandem: the systemd
// unit, the Windows service and MSI, packages, images and Kubernetes manifests,
// one folder each with its test.
package installers
