// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

// benches returns none: they all measure kernels of Linux.
func benches() []bench { return nil }
