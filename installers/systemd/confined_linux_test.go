// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/installers/systemd"
)

// What root reads only by overriding permissions is not for the service, and
// neither is what lies in a folder of which it has its own. The privileges of this
// process stay.
func TestReadable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("gives files to another user, which needs root")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(here, "/tmp/") || strings.HasPrefix(here, "/var/tmp/") {
		t.Skipf("needs files that are not in /tmp, of which the service has its own: the repository is in %s", here)
	}
	dir, err := os.MkdirTemp(here, "readable-") // t.TempDir is in /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	home := filepath.Join(dir, "home")
	path := filepath.Join(home, "config.yaml")
	link := filepath.Join(dir, "link.yaml")
	tmp := filepath.Join(t.TempDir(), "config.yaml")
	for _, f := range []func() error{
		func() error { return os.Mkdir(home, 0o700) },
		func() error { return os.WriteFile(path, nil, 0o600) },
		func() error { return os.WriteFile(tmp, nil, 0o600) },
		func() error { return os.Symlink("home/config.yaml", link) },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) error {
		return systemd.Readable(path, func() error { _, err := os.ReadFile(path); return err })
	}
	for _, c := range []struct {
		name              string
		homeUID, fileUID  int
		homeMode, fileMod fs.FileMode
		ok                bool
	}{
		{"root's", 0, 0, 0o700, 0o600, true},
		{"another user's home", 65534, 65534, 0o700, 0o644, false},
		{"another user's open home", 65534, 65534, 0o711, 0o644, true},
		{"another user's own file", 0, 65534, 0o755, 0o600, false},
	} {
		for _, f := range []func() error{
			func() error { return os.Chown(home, c.homeUID, 65534) },
			func() error { return os.Chown(path, c.fileUID, 65534) },
			func() error { return os.Chmod(home, c.homeMode) },
			func() error { return os.Chmod(path, c.fileMod) },
		} {
			if err := f(); err != nil {
				t.Skipf("this user namespace has no other user: %v", err)
			}
		}
		for _, p := range []string{path, link} {
			err := read(p)
			if (err == nil) != c.ok || err != nil && (!errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "put it into /etc/tandem")) {
				t.Errorf("%s, %s: %v", c.name, p, err)
			}
			if _, err := os.ReadFile(p); err != nil {
				t.Errorf("%s: root cannot read it any more: %v", c.name, err)
			}
		}
	}
	if err := read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := read(tmp); strings.HasPrefix(tmp, "/tmp/") && (err == nil || !strings.Contains(err.Error(), "/tmp of its own")) {
		t.Errorf("a temporary file: %v", err)
	}
}
