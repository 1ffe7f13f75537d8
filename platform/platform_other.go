// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package platform

// thisSystem has nothing besides the modes that work on any system.
func thisSystem() system { return portable() }
