// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

// benches returns none: they all measure Linux kernels.
func benches() []bench { return nil }
