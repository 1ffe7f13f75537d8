// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package iptables

import "github.com/tandem-proxy/tandem/core/dataplane"

func onLinux(m dataplane.Mode) dataplane.Mode { return m.Elsewhere("iptables needs Linux") }
