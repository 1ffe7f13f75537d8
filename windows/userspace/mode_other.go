// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package userspace

import "github.com/tandem-proxy/tandem/core/dataplane"

func onWindows(m dataplane.Mode) dataplane.Mode {
	return m.Elsewhere("assigning addresses to an adapter needs Windows")
}
