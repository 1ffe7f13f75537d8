//go:build !linux

package main

// benches returns none: they all measure kernels of Linux.
func benches() []bench { return nil }
