//go:build !linux && !windows

package platform

import "errors"

func openAddresses() (addresses, error) {
	return nil, errors.New("this system's addresses cannot be followed")
}
