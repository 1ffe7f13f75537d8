// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// running is a Source on a folder.
type running struct {
	*bench
	*record
}

// start runs a Source on a new folder, after prepare, until the test ends.
func start(t *testing.T, scan time.Duration, prepare func(*bench)) running {
	t.Helper()
	r := running{newBench(t), newRecord()}
	if prepare != nil {
		prepare(r.bench)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := Source{Dir: r.dir, Log: quiet(), Scan: scan}
	go func() { done <- s.Run(ctx, r.record) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	r.eventually("synced", func() bool { return len(r.syncs()) == 1 })
	return r
}

func (r *record) syncs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.synced
}

func (r *record) complaints() (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.problems {
		at := filepath.Base(p.Where)
		if !strings.Contains(at, ":") { // the whole file
			at += ":0"
		}
		lines = append(lines, at+": "+p.Object)
	}
	return lines
}

func (r running) eventually(what string, ok func() bool) {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("%s: not within a minute; services %q, problems %q", what, r.names(), r.complaints())
		}
	}
}

// become waits until the sink has exactly these Services.
func (r running) become(what string, names ...string) {
	r.Helper()
	r.eventually(what, func() bool { return slices.Equal(r.names(), names) })
}

func TestSourcePassesDifferences(t *testing.T) {
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n"
	slice := strings.Split(manifest(1, "10.244.1.2"), "---\n")[1]
	r := start(t, time.Hour, func(b *bench) {
		b.put("a.yaml", svc("a")+"---\n"+slice+"---\n"+node)
		b.put("b.yaml", svc("b"))
	})
	equal(t, "at the start", r.take(), []string{"set node node-1", "set service default/a", "set service default/b", "set slice default/web-1-x"})

	r.put("b.yaml", strings.Replace(svc("b"), "80", "81", 1))
	r.eventually("a change", func() bool { return r.port("b") == 81 })
	equal(t, "a change", r.take(), []string{"set service default/b"})

	r.put("a.yaml", "# moved\n\n"+svc("a")+"---\n"+strings.Replace(slice, "10.244.1.2", "10.244.1.3", 1)+"---\n"+node)
	r.eventually("an endpoint", func() bool { return len(r.peek()) > 0 })
	equal(t, "only the endpoint, not what moved", r.take(), []string{"set slice default/web-1-x"})

	r.put("a.yaml", svc("a")+"---\nkind: [\n")
	r.eventually("a problem", func() bool { return len(r.complaints()) == 1 })
	equal(t, "problems", r.complaints(), []string{"a.yaml:3: document"})
	equal(t, "unreadable files keep their objects", r.take(), nil)

	r.put("a.yaml", svc("a"))
	r.eventually("the problem goes", func() bool { return len(r.complaints()) == 0 })
	equal(t, "a removed Node is reported, and the engine keeps its own", r.take(), []string{"delete node node-1", "delete slice default/web-1-x"})

	r.put("b.yaml", strings.Replace(svc("b"), "10.96.0.1", "None", 1))
	r.become("headless now", "a")
	r.put("b.yaml", svc("b"))
	r.become("and back", "a", "b")
	r.remove("b.yaml")
	r.become("a file goes", "a")
	if err := os.Rename(filepath.Join(r.dir, "a.yaml"), filepath.Join(r.dir, "a.yaml.bak")); err != nil {
		t.Fatal(err)
	}
	r.become("a file is renamed to a backup")
	// Whole at the start, then not while a document is broken, and not when the folder is empty.
	r.eventually("it is passed after the rest", func() bool { return len(r.syncs()) >= 4 })
	equal(t, "whole", r.syncs(), []string{"true", "false", "true", "false"})
}

// TestSourceConfigMap switches a folder as kubelet does a mounted ConfigMap.
func TestSourceConfigMap(t *testing.T) {
	version := func(b *bench, name string, files map[string]string) {
		if err := os.Mkdir(filepath.Join(b.dir, name), 0o700); err != nil {
			b.Fatal(err)
		}
		for f, text := range files {
			write(b, filepath.Join(b.dir, name), f, text)
		}
		if err := errors.Join(os.Symlink(name, filepath.Join(b.dir, "..data_tmp")),
			os.Rename(filepath.Join(b.dir, "..data_tmp"), filepath.Join(b.dir, "..data"))); err != nil {
			b.Fatal(err)
		}
	}
	r := start(t, time.Hour, func(b *bench) {
		version(b, "..2026_1", map[string]string{"x.yaml": svc("a"), "y.yaml": svc("c")})
		if err := errors.Join(os.Symlink("..data/x.yaml", filepath.Join(b.dir, "x.yaml")),
			os.Symlink("..data/y.yaml", filepath.Join(b.dir, "y.yaml"))); err != nil {
			b.Skipf("no symbolic links here: %v", err)
		}
	})
	r.become("at the start", "a", "c")
	r.take()
	version(r.bench, "..2026_2", map[string]string{"x.yaml": svc("b"), "y.yaml": svc("c")})
	r.become("switched", "b", "c")
	equal(t, "calls", r.take(), []string{"delete service default/a", "set service default/b"})
}

// TestSourceHalfWritten truncates a file and writes it bit by bit.
func TestSourceHalfWritten(t *testing.T) {
	whole := svc("a") + "---\n" + svc("b") + "---\n" + svc("c")
	r := start(t, time.Hour, func(b *bench) { write(b, b.dir, "x.yaml", whole) })
	r.take()
	h, err := os.OpenFile(filepath.Join(r.dir, "x.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	changed := strings.Replace(whole, "port: 80", "port: 8080", 1)
	for i := 0; i < len(changed); i += 40 {
		time.Sleep(10 * time.Millisecond)
		if _, err := h.WriteString(changed[i:min(i+40, len(changed))]); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually("written", func() bool { return len(r.peek()) > 0 })
	equal(t, "calls", r.take(), []string{"set service default/a"})
	if err := h.Truncate(0); err != nil {
		t.Fatal(err)
	}
	r.become("emptied for good")
}

// TestSourceScans changes what no notification reports: the file behind a
// link, and the folder itself.
func TestSourceScans(t *testing.T) {
	r := start(t, 20*time.Millisecond, func(b *bench) {
		if err := os.Mkdir(filepath.Join(b.dir, "sub"), 0o700); err != nil {
			b.Fatal(err)
		}
		write(b, filepath.Join(b.dir, "sub"), "x", svc("a"))
		if err := os.Symlink(filepath.Join("sub", "x"), filepath.Join(b.dir, "x.yaml")); err != nil {
			b.Skipf("no symbolic links here: %v", err)
		}
	})
	write(t, filepath.Join(r.dir, "sub"), "x", svc("a")+"---\n"+svc("b"))
	r.become("behind a link", "a", "b")

	if err := os.Rename(r.dir, r.dir+".old"); err != nil {
		t.Fatal(err)
	}
	r.eventually("the folder is gone", func() bool { return slices.Equal(r.complaints(), []string{filepath.Base(r.dir) + ":0: folder"}) })
	r.become("keeping last known state", "a", "b")
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, r.dir, "y.yaml", svc("c"))
	r.become("a new folder", "c")
	r.eventually("no problem any more", func() bool { return len(r.complaints()) == 0 })
	if err := os.RemoveAll(r.dir + ".old"); err != nil {
		t.Error(err)
	}
}

// TestSourceReturns takes the folder away for a while, as an unmounted volume is.
func TestSourceReturns(t *testing.T) {
	r := start(t, 20*time.Millisecond, func(b *bench) {
		b.put("x.yaml", svc("a"))
		old := time.Now().Add(-time.Hour) // so that it need not be read again
		if err := os.Chtimes(filepath.Join(b.dir, "x.yaml"), old, old); err != nil {
			b.Fatal(err)
		}
	})
	r.take()
	if err := os.Rename(r.dir, r.dir+".away"); err != nil {
		t.Fatal(err)
	}
	r.eventually("the folder is gone", func() bool { return len(r.complaints()) == 1 })
	if err := os.Rename(r.dir+".away", r.dir); err != nil {
		t.Fatal(err)
	}
	r.eventually("no problem any more", func() bool { return len(r.complaints()) == 0 })
	equal(t, "what was in it stood", r.take(), nil)
}

// TestSourceNotices changes a file of a folder that is read again once an hour only: what
// arrives comes from the system's notices. How long that takes, ci/bench measures.
func TestSourceNotices(t *testing.T) {
	r := start(t, time.Hour, func(b *bench) { b.put("all.yaml", manifests(500)) })
	for i := range 30 {
		r.take()
		r.put("x.yaml", manifest(1000, fmt.Sprintf("10.244.1.%d", i+1)))
		r.eventually("the change", func() bool { return len(r.peek()) > 0 })
	}
}

func TestSourceNoFolder(t *testing.T) {
	s := Source{Dir: filepath.Join(t.TempDir(), "none"), Log: quiet()}
	if err := s.Run(context.Background(), newRecord()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// TestSourceStops leaves no goroutine behind.
func TestSourceStops(t *testing.T) {
	before := runtime.NumGoroutine()
	dir := t.TempDir()
	write(t, dir, "x.yaml", manifests(100))
	for range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		s := Source{Dir: dir, Log: quiet()}
		if err := s.Run(ctx, newRecord()); err != nil {
			t.Error(err)
		}
		cancel()
	}
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// TestWatcherWithoutNotifications only sleeps.
func TestWatcherWithoutNotifications(t *testing.T) {
	w := &watcher{path: t.TempDir(), log: quiet()}
	w.renew()
	if !w.wait(context.Background(), time.Millisecond) {
		t.Error("does not wake up")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if w.wait(ctx, time.Hour) {
		t.Error("continues after the end")
	}
	w.close()
}

// Where notifications are unavailable, each scan tries again: that is said once.
func TestLackOfNotificationsIsSaidOnce(t *testing.T) {
	var said strings.Builder
	w := newWatcher(t.TempDir(), slog.New(slog.NewTextHandler(&said, nil)))
	if w.notify == nil {
		t.Skip("this system has no file notifications: ", said.String())
	}
	w.close()
	w.info = nil // as where it could not be watched at the start
	for range 5 {
		w.renew()
	}
	if n := strings.Count(said.String(), "file notifications unavailable"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, &said)
	}
}
