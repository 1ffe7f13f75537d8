// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// CheckIPv6 returns dataplane.ErrAbsent where the kernel has no IPv6, as with
// ipv6.disable=1. Its filters may take rules for IPv6 then, too, for packets that never come.
func CheckIPv6() error {
	_, err := os.Stat("/proc/sys/net/ipv6")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: IPv6 is off in this kernel (ipv6.disable=1)", dataplane.ErrAbsent)
	}
	return err
}
