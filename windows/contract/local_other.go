// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package contract

import "errors"

// Local returns the HNS of this machine, and its service.
func Local() (HNS, Service, error) {
	return nil, nil, errors.New("HNS needs Windows; on this system there is --compare")
}

// Windows returns the version of this Windows.
func Windows() string { return "" }
