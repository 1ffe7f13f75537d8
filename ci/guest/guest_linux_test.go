// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Only the text between the two lines of init.sh is the program's, in whatever
// pieces it arrives.
func TestConsole(t *testing.T) {
	const said = "the kernel's\r\n" + begin + "\r\none\r\ntwo" + finish + "3\r\nReboot: power down\r\n"
	for size := range len(said) {
		var out bytes.Buffer
		c := console{to: &out}
		for rest := []byte(said); len(rest) > 0; {
			n := min(size+1, len(rest))
			if _, err := c.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if out.String() != "one\ntwo" || c.state != ended || c.code != 3 || c.boot.String() != "the kernel's\n" {
			t.Errorf("in pieces of %d: %q, state %d, code %d, boot %q", size+1, out.String(), c.state, c.code, c.boot.String())
		}
	}
}

// The script and the console agree on the lines between which the program prints.
func TestInitScript(t *testing.T) {
	for _, line := range []string{begin, finish} {
		if !bytes.Contains(initScript, []byte(`echo "`+line)) {
			t.Errorf("init.sh does not print %s", line)
		}
	}
}

// Without modprobe a guest has no modules, and the reason says so: here, not in each test that lacks one.
func TestNoModprobe(t *testing.T) {
	if !bytes.Contains(initScript, []byte("export PATH="+guestPath+"\n")) {
		t.Errorf("init.sh looks for programs elsewhere than in %s", guestPath)
	}
	empty, dir := t.TempDir(), t.TempDir()
	path := empty + ":" + dir
	if err := findModprobe(path); err == nil || !strings.Contains(err.Error(), "apt-get install kmod") || !strings.Contains(err.Error(), path) {
		t.Errorf("without modprobe: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "modprobe"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := findModprobe(path); err != nil {
		t.Error(err)
	}
}

// What a kernel says before it is stopped is kept up to a bound, and the line that is waited for whole.
func TestUntilSaid(t *testing.T) {
	stopped := 0
	u := &untilSaid{what: regexp.MustCompile(`Kernel panic.*\n`), stop: func() { stopped++ }}
	for range 1000 {
		if _, err := u.Write(bytes.Repeat([]byte("noise\n"), 1000)); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []string{"Kernel pa", "nic - not syncing", "\n", "and on\n"} {
		if _, err := u.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(u.what.Find(u.text)); got != "Kernel panic - not syncing\n" || stopped != 1 || len(u.text) > 20<<10 {
		t.Errorf("%q, stopped %d times, %d bytes are kept", got, stopped, len(u.text))
	}
}

// An archive is a sequence of heads, names and contents, each padded to four bytes.
func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := archive{w: &b}
	if err := a.put("/etc", fs.ModeDir|0o755, 0, nil); err != nil {
		t.Fatal(err)
	}
	if err := a.put("/etc/x", 0o644, 5, strings.NewReader("hello")); err != nil {
		t.Fatal(err)
	}
	if err := a.put("/etc/y", fs.ModeSymlink|0o777, 1, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	zero := strings.Repeat("0", 8)
	head := func(inode, mode, size, name string) string {
		return "070701" + inode + mode + zero + zero + "00000001" + zero + size + zero + zero + zero + zero + name + zero
	}
	want := head("00000001", "000041ed", zero, "00000004") + "etc\x00\x00\x00" +
		head("00000002", "000081a4", "00000005", "00000006") + "etc/x\x00" + "hello\x00\x00\x00" +
		head("00000003", "0000a1ff", "00000001", "00000006") + "etc/y\x00" + "x\x00\x00\x00" +
		head("00000004", "00008000", zero, "0000000b") + "TRAILER!!!\x00\x00\x00\x00"
	if b.String() != want {
		t.Errorf("got  %q\nwant %q", b.String(), want)
	}
}

// A file that is reached through symbolic links is there under every name, once.
func TestImageFollowsLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "real"), 0o755),
		os.WriteFile(filepath.Join(dir, "real", "tool-1"), []byte("x"), 0o755),
		os.Symlink("tool-1", filepath.Join(dir, "real", "tool")),
		os.Symlink("real", filepath.Join(dir, "link")),
		os.Symlink("nowhere", filepath.Join(dir, "real", "broken")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	im := image{&archive{w: &b}, map[string]bool{"/": true}}
	for _, name := range []string{"link/tool", "link/tool", "link/broken"} {
		if err := im.add(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"real", "link", "real/tool", "real/tool-1", "real/broken"} {
		if n := strings.Count(b.String(), strings.TrimPrefix(filepath.Join(dir, name), "/")+"\x00"); n != 1 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
}

// Guests that run at once do not get more than there is.
func TestSlots(t *testing.T) {
	dir := t.TempDir()
	want := func(memory int) map[string]struct{ want, all int } {
		return map[string]struct{ want, all int }{"processor": {1, 3}, "memory": {memory, 4}}
	}
	first, err := tryTake(dir, want(3))
	if err != nil || len(first) != 4 {
		t.Fatalf("%d locks, %v", len(first), err)
	}
	if second, err := tryTake(dir, want(2)); err != nil || second != nil {
		t.Errorf("more memory than there is was given: %v", err)
	}
	small, err := tryTake(dir, want(1))
	if err != nil || len(small) != 2 {
		t.Errorf("%d locks, %v", len(small), err)
	}
	first.close()
	if again, err := tryTake(dir, want(3)); err != nil || len(again) != 4 {
		t.Errorf("released memory is not available: %d locks, %v", len(again), err)
	} else {
		again.close()
	}
	small.close()
}

func TestLater(t *testing.T) {
	if !later("/x/linux-6.12", "/x/linux-6.1") || later("/x/linux-5.15", "/x/linux-6.1") || !later("/x/linux-6.1", "") {
		t.Error("versions are in the wrong order")
	}
}
