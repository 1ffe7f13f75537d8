// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// tree makes a file system with these files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func read(t *testing.T, root, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

const (
	tableMax  = "proc/sys/net/netfilter/nf_conntrack_max"
	hashsize  = "sys/module/nf_conntrack/parameters/hashsize"
	closeWait = "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
	oom       = "proc/self/oom_score_adj"
	online    = "sys/devices/system/cpu/online"
)

func settings() *config.Config {
	hour, score := time.Hour, -999
	return &config.Config{Conntrack: config.Conntrack{MaxPerCore: 32768, Min: 131072, TCPCloseWait: &hour}, OOMScoreAdj: &score}
}

func TestPrepare(t *testing.T) {
	for _, c := range []struct {
		name              string
		max, wait         string
		wantMax, wantWait string
	}{
		{"too small, too short", "65536\n", "60\n", "262144", "3600"},
		{"larger than asked for", "1048576\n", "7200\n", "1048576", "3600"},
		{"already set", "262144\n", "3600\n", "262144", "3600"},
	} {
		root := tree(t, map[string]string{tableMax: c.max, hashsize: "16384\n", closeWait: c.wait, oom: "0\n", online: "0-7\n"})
		if failed := host.Prepare(root, settings(), slog.New(slog.DiscardHandler)); len(failed) > 0 {
			t.Errorf("%s: %v", c.name, failed)
		}
		if m, w := read(t, root, tableMax), read(t, root, closeWait); m != c.wantMax || w != c.wantWait {
			t.Errorf("%s: max %s, close wait %s", c.name, m, w)
		}
		if h, o := read(t, root, hashsize), read(t, root, oom); h != "65536" || o != "-999" {
			t.Errorf("%s: hashsize %s, oom %s", c.name, h, o)
		}
	}
}

// What cannot be set keeps nothing else from being set, and states what to do.
func TestPrepareGoesOn(t *testing.T) {
	root := tree(t, map[string]string{tableMax: "nonsense", closeWait: "60", oom: "0", online: "?"})
	failed := host.Prepare(root, settings(), slog.New(slog.DiscardHandler))
	if len(failed) != 2 || read(t, root, closeWait) != "3600" || read(t, root, oom) != "-999" || read(t, root, tableMax) != "nonsense" {
		t.Errorf("failed %v", failed)
	}
	if _, err := os.Stat(filepath.Join(root, hashsize)); err == nil {
		t.Error("a parameter was made that the kernel does not have")
	}
	for _, part := range []string{"its module (connection tracking, IPVS) is not loaded", "on the host: echo ", "not a number"} {
		if text := errors.Join(failed...).Error(); !strings.Contains(text, part) {
			t.Errorf("%q is missing in %s", part, text)
		}
	}
}

// What could be set is found out without setting it.
func TestCheckChangesNothing(t *testing.T) {
	root := tree(t, map[string]string{closeWait: "60"})
	if err := (host.Setting{Path: closeWait, Want: 3600}).Check(root); err != nil {
		t.Error(err)
	}
	if have := read(t, root, closeWait); have != "60" {
		t.Errorf("it is %s now", have)
	}
	const readOnly = "proc/sys/kernel/ngroups_max" // 65536, which root cannot change either
	if err := (host.Setting{Path: readOnly, Want: 1, AtLeast: true}).Check("/"); err != nil {
		t.Errorf("good enough: %v", err)
	}
	for path, part := range map[string]string{readOnly: "no permission", tableMax + "_none": "its module"} {
		if err := (host.Setting{Path: path, Want: 1}).Check("/"); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// On a real kernel, a namespace's own sysctls. The table's size belongs to the
// machine and is not changed here.
func TestPrepareInANamespace(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	n, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	c := settings()
	c.OOMScoreAdj = nil
	c.Conntrack.MaxPerCore = 0
	c.Conntrack.UDP, c.Conntrack.TCPBeLiberal = 17*time.Second, true
	err = n.Do(netns.Node, func() error {
		if _, err := host.Sysctl("net/netfilter/nf_conntrack_udp_timeout"); err != nil {
			t.Skipf("no connection tracking here: %v", err)
		}
		if failed := host.Prepare("/", c, slog.New(slog.DiscardHandler)); len(failed) > 0 {
			t.Errorf("failed: %v", failed)
		}
		for name, want := range map[string]string{
			"nf_conntrack_udp_timeout": "17", "nf_conntrack_tcp_be_liberal": "1", "nf_conntrack_tcp_timeout_close_wait": "3600",
		} {
			if got, err := host.Sysctl("net/netfilter/" + name); err != nil || got != want {
				t.Errorf("%s: %s, %v", name, got, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
