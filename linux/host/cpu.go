// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"strconv"
	"strings"
)

// countCPUs counts a list as in /sys/devices/system/cpu/online: "0-3,8".
func countCPUs(list string) (n int, err error) {
	const most = 1 << 16
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || to < from {
			return 0, fmt.Errorf("not a list of CPUs: %.40q", list)
		}
		n += int(to-from) + 1
		if n > most {
			return 0, fmt.Errorf("too many CPUs: %.40q", list)
		}
	}
	return n, nil
}
