// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
)

// releases are the earlier programs from which, and back to which, this one is put.
// The first is the previous release: name the new one at each release. The others had
// another layout of their rules.
var releases = []struct{ commit, what string }{
	{"0d30937e10c6cdaf45cea520f7366090c928b9be", "previous release"},
	{"c999a787", "one affinity set a port in nftables (layout 1)"},
	{"4bf1177d", "the first with all kernel modes"},
}

// earlier builds the program of a commit, once for all runs on this machine. It skips
// the test where the history is not there, as in a shallow clone, or the modules are not.
func earlier(t *testing.T, commit string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	bin := filepath.Join(cache, "tandem", "release-"+commit[:8]+"-"+runtime.Version(), "tandem")
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	if out, err := exec.Command("git", "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("the history of this checkout has no %s: %s", commit, out)
	}
	source := t.TempDir()
	const unpack = `set -e; git -C "$(git rev-parse --show-toplevel)" archive "$1" | tar -x -C "$2"`
	if out, err := exec.Command("sh", "-c", unpack, "sh", commit, source).CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v: %s", commit, err, out)
	}
	download := exec.Command("go", "mod", "download")
	download.Dir = source
	if out, err := download.CombinedOutput(); err != nil {
		t.Skipf("modules of %s cannot be downloaded: %v: %s", commit, err, out)
	}
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-o", bin+".new", "./cmd/tandem")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build of %s: %v: %s", commit, err, out)
	}
	if err := os.Rename(bin+".new", bin); err != nil {
		t.Fatal(err)
	}
	return bin
}

// TestUpgradeAndDowngrade replaces earlier programs by this one and this one by them,
// under load, in each mode: no connection fails or breaks.
func TestUpgradeAndDowngrade(t *testing.T) {
	for _, release := range releases {
		old := earlier(t, release.commit)
		t.Run(release.commit[:8], func(t *testing.T) {
			t.Log(release.what)
			eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
				if mode.Name == relay.Mode {
					t.Skip("its relays end with the process: see TestUserspaceRestartUnderLoad")
				}
				u := newUpgrade(t)
				u.wrap, u.flags = flavour.wrap, []string{"--proxy-mode", string(mode.Name)}
				now := u.bin
				u.bin = old
				u.start()
				u.load()
				u.undisturbed("the old one alone")
				for i, step := range []struct{ what, bin string }{{"upgrade", now}, {"downgrade", old}, {"upgrade again", now}} {
					u.stop()
					u.bin = step.bin
					u.start()
					u.follows(step.what, fmt.Sprintf("10.244.1.%d", 4-i))
					u.undisturbed(step.what)
				}
				u.stop()
				u.must(now, "cleanup")
				if err := u.left(mode.Name); err != nil {
					t.Errorf("after cleanup: %v", err)
				}
			})
		})
	}
}
