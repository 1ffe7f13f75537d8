package netns

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/iptables"
)

// flavours are the ways in which a mode can be run: iptables over either of its
// two variants, all others as they are.
func flavours(mode dataplane.Mode) []flavour {
	if mode.Name != iptables.Name {
		return []flavour{{name: string(mode.Name), prepare: func(testing.TB) {}}}
	}
	var all []flavour
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		all = append(all, flavour{
			name:    string(mode.Name) + "-" + string(v),
			prepare: func(t testing.TB) { useVariant(t, v) },
		})
	}
	return all
}

type flavour struct {
	name    string
	prepare func(testing.TB)
}

// useVariant makes the plain names of iptables stand for a variant, for the
// duration of a test, with a lock of its own. Where nothing uses iptables yet,
// as in a fresh namespace, that is the one to be chosen.
func useVariant(t testing.TB, v iptables.Variant) {
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
