// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package userspace

import (
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
)

func onLinux(m dataplane.Mode, _ func() relay.Handover) dataplane.Mode {
	return m.Elsewhere("redirect rules need Linux")
}
