// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package platform

import "runtime"

// thisSystem is a laptop's: it is asked about nodes, and is none.
func thisSystem() system { return asking(runtime.GOOS) }
