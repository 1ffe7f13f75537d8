// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
)

// TestSpecialFiles has everything in the folder that must not be opened, or
// cannot be.
func TestSpecialFiles(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "good.yaml", svc("good"))
	write(t, other, "linked", svc("stranger"))
	must(os.Mkdir(in("dir.yaml"), 0o700))
	must(os.Mkdir(in("sub"), 0o700))
	write(t, in("sub"), "x.yaml", "garbage: [")
	must(unix.Mkfifo(in("fifo.yaml"), 0o600))
	must(os.Symlink("/dev/zero", in("zero.yaml")))
	must(os.Symlink("loop2.yaml", in("loop1.yaml")))
	must(os.Symlink("loop1.yaml", in("loop2.yaml")))
	must(os.Symlink("nowhere", in("dangling.yaml")))
	must(os.Symlink(filepath.Join(other, "linked"), in("outside.yaml")))
	must(os.Symlink("../"+filepath.Base(other)+"/linked", in("outside2.yaml")))
	must(os.Mkdir(in("..2026_11_22"), 0o700)) // as a ConfigMap is mounted
	write(t, in("..2026_11_22"), "linked.yaml", svc("linked"))
	must(os.Symlink("..2026_11_22", in("..data")))
	must(os.Symlink("..data/linked.yaml", in("linked.yaml")))
	must(os.Symlink("sub", in("subdir.json")))
	listener, err := net.Listen("unix", in("socket.yaml"))
	must(err)
	defer listener.Close()
	huge, err := os.Create(in("huge.yaml"))
	must(err)
	must(huge.Truncate(10 << 30))
	must(huge.Close())

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := Read(ctx, dir, config.PortRange{})
	must(err)
	var problems []string
	for _, p := range r.Problems {
		problems = append(problems, strings.TrimPrefix(p.String(), dir+"/"))
	}
	equal(t, "problems", problems, []string{
		"dangling.yaml: file: cannot be read: no such file or directory",
		"dir.yaml: file: is a directory, only regular files are read",
		"fifo.yaml: file: is a FIFO, only regular files are read",
		"huge.yaml: file: has 10737418240 bytes; the limit is 67108864",
		"loop1.yaml: file: cannot be read: too many levels of symbolic links",
		"loop2.yaml: file: cannot be read: too many levels of symbolic links",
		"outside.yaml: file: cannot be read: path escapes from parent",
		"outside2.yaml: file: cannot be read: path escapes from parent",
		"socket.yaml: file: is a socket, only regular files are read",
		"subdir.json: file: is a directory, only regular files are read",
		"zero.yaml: file: cannot be read: path escapes from parent",
	})
	if len(r.Services) != 2 || r.Services[0].Name.Name != "good" || r.Services[1].Name.Name != "linked" {
		t.Errorf("%d services", len(r.Services))
	}
}

// TestSwappedFIFO has a FIFO in a file's place at the moment between looking and
// opening. To open it must not wait for a writer that never comes.
func TestSwappedFIFO(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "x.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir, filepath.Join(dir, "x.yaml")} {
		done := make(chan error, 1)
		go func() {
			from, err := originOf(name).enter(t.Context())
			if err == nil {
				defer from.leave()
				_, _, err = readAll(from.files, "x.yaml", 1<<20)
			}
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, errUnsettled) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: opening a FIFO hangs", name)
		}
	}
}

// TestUnreadable takes the permission to read a file away, and root's power to
// read it all the same.
func TestUnreadable(t *testing.T) {
	obeyModes(t)
	w := newBench(t)
	w.put("x.yaml", svc("a"))
	w.expect("before", []string{"a"})
	w.put("x.yaml", svc("a2"))
	w.put("y.yaml", svc("b"))
	mode := func(m os.FileMode) {
		for _, name := range []string{"x.yaml", "y.yaml"} {
			if err := os.Chmod(filepath.Join(w.dir, name), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	mode(0o200)
	f := w.expect("unreadable", []string{"a"}, "x.yaml:0", "y.yaml:0")
	if len(f.problems) == 2 && f.problems[1].String() != "y.yaml: file: cannot be read: permission denied" {
		t.Error(f.problems[1])
	}
	mode(0o600)
	w.expect("readable again", []string{"a2", "b"})
}

// obeyModes makes the test's thread obey file modes even as root, until the
// test ends.
func obeyModes(t *testing.T) {
	runtime.LockOSThread()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		t.Fatal(err)
	}
	less := caps
	less[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	if err := unix.Capset(&head, &less[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Capset(&head, &caps[0]); err != nil {
			t.Error(err) // the thread stays locked and ends with the test
			return
		}
		runtime.UnlockOSThread()
	})
}

// Many files that vanish at once, as a folder behind links does, are one problem, which keeps
// no other from being shown.
func TestVanishedFilesAreOneProblem(t *testing.T) {
	dir := t.TempDir()
	for i := range 300 {
		if err := os.Symlink("nowhere", filepath.Join(dir, fmt.Sprintf("%03d.yaml", i))); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "bad.yaml", "kind: [")
	r, err := Read(t.Context(), dir, config.PortRange{})
	if err != nil || len(r.Problems) != 2 || !strings.HasSuffix(r.Problems[0].String(), "000.yaml: file: cannot be read: no such file or directory; the same for 299 more files") {
		t.Errorf("%v: %d problems: %.300v", err, len(r.Problems), r.Problems)
	}
}
