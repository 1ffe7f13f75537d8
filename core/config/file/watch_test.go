// SPDX-License-Identifier: Apache-2.0

package file_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config/file"
)

// watching follows a file until the test ends.
func watching(t *testing.T, path string) <-chan string {
	return watchingWith(t, path, slog.New(slog.DiscardHandler))
}

func watchingWith(t *testing.T, path string, log *slog.Logger) <-chan string {
	t.Helper()
	text, err := file.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen, done := make(chan string, 100), make(chan struct{})
	go func() {
		defer close(done)
		file.Watch(ctx, path, text, log, func(b []byte) { seen <- string(b) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return seen
}

// next returns the next content that was seen, in a time in which no slow scan
// falls.
func next[C ~chan string | ~<-chan string](t *testing.T, seen C) string {
	t.Helper()
	select {
	case s := <-seen:
		return s
	case <-time.After(5 * time.Second):
		t.Fatal("the change was not noticed")
		return ""
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// mount writes a ConfigMap as the kubelet mounts it: the file is a link into
// ..data, which is a link to a folder with the time in its name.
func mount(t *testing.T, dir, version, text string) {
	t.Helper()
	real := filepath.Join(dir, "..v"+version)
	if err := os.Mkdir(real, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(real, "config.conf"), text)
	old, _ := os.Readlink(filepath.Join(dir, "..data"))
	tmp := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(real), tmp); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if old == "" {
		if err := os.Symlink("..data/config.conf", filepath.Join(dir, "config.conf")); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
		t.Fatal(err)
	}
}

func TestConfigMapSwitches(t *testing.T) {
	dir := t.TempDir()
	mount(t, dir, "0", "zero")
	seen := watching(t, filepath.Join(dir, "config.conf"))
	for _, v := range []string{"1", "2", "3", "4", "5"} {
		mount(t, dir, v, "content "+v)
		if got := next(t, seen); got != "content "+v {
			t.Fatalf("switch %s: got %q", v, got)
		}
	}
	mount(t, dir, "6", "content 5")
	mount(t, dir, "7", "content 7")
	if got := next(t, seen); got != "content 7" {
		t.Errorf("the same content in another folder is no change: got %q", got)
	}
}

func TestPlainFileChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.conf")
	write(t, path, "zero")
	seen := watching(t, path)

	write(t, path, "in place")
	if got := next(t, seen); got != "in place" {
		t.Fatalf("got %q", got)
	}
	write(t, path+".new", "renamed over")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if got := next(t, seen); got != "renamed over" {
		t.Fatalf("got %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, "")
	write(t, path, "back again")
	if got := next(t, seen); got != "back again" {
		t.Fatalf("gone and empty are no changes: got %q", got)
	}
	write(t, filepath.Join(dir, "other"), "x")
	write(t, path, "last")
	if got := next(t, seen); got != "last" {
		t.Fatalf("got %q", got)
	}
}

// A link to a file elsewhere is followed, too.
func TestLinkToAFileElsewhere(t *testing.T) {
	dir, real := t.TempDir(), filepath.Join(t.TempDir(), "real.conf")
	write(t, real, "zero")
	path := filepath.Join(dir, "config.conf")
	if err := os.Symlink(real, path); err != nil {
		t.Fatal(err)
	}
	seen := watching(t, path)
	write(t, real, "one")
	if got := next(t, seen); got != "one" {
		t.Fatalf("got %q", got)
	}
}

// journal gives on what is logged.
type journal chan string

func (l journal) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// A file that cannot be read changes nothing and is logged once.
func TestAnUnreadableFileIsSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "zero")
	said := make(journal, 100)
	seen := watchingWith(t, path, slog.New(slog.NewTextHandler(said, nil)))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if line := next(t, said); !strings.Contains(line, "config.conf") || !strings.Contains(line, "WARN") {
		t.Errorf("logged %q", line)
	}
	write(t, path+".other", "x") // another look
	write(t, path, "back")
	if got := next(t, seen); got != "back" || len(said) > 0 {
		t.Errorf("got %q, logged %d times more", got, len(said))
	}
}
