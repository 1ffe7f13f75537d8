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

// TCPLiberal reports whether connection tracking takes TCP packets outside of the
// window for valid: then rules need not drop those that it finds invalid.
// kube-proxy looks once, at its start, too.
func TCPLiberal() bool {
	v, err := Sysctl("net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && v != "0"
}

func path(name string) string { return filepath.Join("/proc/sys", name) }
