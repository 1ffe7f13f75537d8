//go:build !windows

package platform

// Harden is for Windows: other systems load nothing from where they are started.
func Harden() {}
