// SPDX-License-Identifier: Apache-2.0

package host

import "os"

// PossibleCPUs is how many CPUs the kernel keeps counters for: those that it could ever
// have. Where that cannot be read it is taken for many.
func PossibleCPUs() int {
	const many = 1024
	b, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return many
	}
	n, err := countCPUs(string(b))
	if err != nil {
		return many
	}
	return n
}
