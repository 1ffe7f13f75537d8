// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Sysctl returns a kernel parameter by its name with slashes, such as
// "net/ipv4/ip_forward".
func Sysctl(name string) (string, error) {
	b, err := os.ReadFile(path(name))
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %s: %w", strings.ReplaceAll(name, "/", "."), cause(err), err)
	}
	return strings.TrimSpace(string(b)), nil
}

func path(name string) string { return filepath.Join("/proc/sys", name) }
