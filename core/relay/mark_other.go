//go:build !linux

package relay

import (
	"errors"
	"fmt"
)

func setMark(_ int, mark uint32) error {
	if mark == 0 {
		return nil
	}
	return fmt.Errorf("packets with a mark: %w", errors.ErrUnsupported)
}
