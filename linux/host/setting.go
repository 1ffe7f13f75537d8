// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"strconv"
	"strings"
)

// Setting is the wanted value of a number in a file of the kernel.
type Setting struct {
	// Path is the file below the root, such as
	// "proc/sys/net/netfilter/nf_conntrack_max".
	Path string
	Want int
	// AtLeast leaves a larger value alone: other programs may rely on it.
	AtLeast bool
}

// fits reports whether a file's content satisfies the setting.
func (s Setting) fits(content string) (bool, error) {
	have, err := strconv.Atoi(strings.TrimSpace(content))
	if err != nil {
		return false, fmt.Errorf("not a number: %.40q", content)
	}
	return have == s.Want || s.AtLeast && have > s.Want, nil
}

// String names the setting and its wanted value.
func (s Setting) String() string {
	least := ""
	if s.AtLeast {
		least = "at least "
	}
	return fmt.Sprintf("%s should be %s%d", s.name(), least, s.Want)
}

// name is the sysctl name, such as net.netfilter.nf_conntrack_max, or the file.
func (s Setting) name() string {
	if sysctl, ok := strings.CutPrefix(s.Path, "proc/sys/"); ok {
		return "sysctl " + strings.ReplaceAll(sysctl, "/", ".")
	}
	return "/" + s.Path
}

// fix is the command that sets it by hand.
func (s Setting) fix() string {
	if sysctl, ok := strings.CutPrefix(s.Path, "proc/sys/"); ok {
		return fmt.Sprintf("sysctl -w %s=%d", strings.ReplaceAll(sysctl, "/", "."), s.Want)
	}
	return fmt.Sprintf("echo %d > /%s", s.Want, s.Path)
}
