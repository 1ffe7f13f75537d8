// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package hns

import (
	"errors"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

func onWindows(m dataplane.Mode) dataplane.Mode { return m.Elsewhere("HNS needs Windows") }

// Local returns the HNS of this machine and its settings. The caller
// closes it.
func Local() (HNS, Settings, error) { return nil, Settings{}, errors.New("HNS needs Windows") }
