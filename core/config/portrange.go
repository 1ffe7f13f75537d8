// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
)

// PortRange is a range of ports, first and last included. The zero value has all.
type PortRange struct{ First, Last uint16 }

// Has reports whether a port is in the range.
func (r PortRange) Has(port uint16) bool {
	return r == PortRange{} || r.First <= port && port <= r.Last
}

// String returns the range as in 30000-32767.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func portRange(p *PortRange) Value { return scalar(Text, p, parsePortRange, PortRange.String) }

func parsePortRange(s string) (r PortRange, err error) {
	first, last, ok := strings.Cut(s, "-")
	if !ok {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || a == 0 || a > b {
		return r, fmt.Errorf("%s is not a range of ports such as 30000-32767", quote(s))
	}
	return PortRange{uint16(a), uint16(b)}, nil
}
