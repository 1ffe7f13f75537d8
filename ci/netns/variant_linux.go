// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tandem-proxy/tandem/linux/xtables"
)

// UseVariant makes the plain names of iptables run one variant, for the
// duration of a test, with a lock of its own. Where nothing uses iptables yet,
// as in a fresh namespace, that is the one to be chosen.
func UseVariant(t testing.TB, v xtables.Variant) {
	dir := t.TempDir()
	for _, base := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-restore", "-save"} {
			path, err := exec.LookPath(base + "-" + string(v) + verb)
			if err != nil {
				t.Skipf("the %s variant of iptables is not installed: %v", v, err)
			}
			if err := os.Symlink(path, filepath.Join(dir, base+verb)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock"))
}
