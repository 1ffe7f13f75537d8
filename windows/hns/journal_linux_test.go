// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// A write to the journal fails, as on a full disk (Linux has a file for that): the next
// one replaces the file, which then has everything.
func TestAWriteToTheJournalFails(t *testing.T) {
	on(t, hnsemu.WS2022, func(r *rig) {
		web(r)
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			r.Fatal(err)
		}
		defer full.Close()
		for fd := range 1000 {
			if to, _ := os.Readlink(fmt.Sprint("/proc/self/fd/", fd)); to != r.settings.Journal {
				continue
			}
			if err := syscall.Dup3(int(full.Fd()), fd, syscall.O_CLOEXEC); err != nil {
				r.Fatal(err)
			}
		}
		r.set("new", "10.96.0.12", "10.244.2.2") // its line is lost
		r.set("last", "10.96.0.13", "10.244.2.2")
		r.sync()
		r.recorded()
	})
}

// There is no room for a second file, but for more lines in the one that there is: what the
// next process finds is complete, whichever of the journal's writes came first.
func TestTheJournalCannotBeReplaced(t *testing.T) {
	t.Run("once", func(t *testing.T) {
		cannotBeReplaced(t, func(file string) error { return os.Symlink("/dev/full", file) }, true)
	})
	t.Run("always", func(t *testing.T) {
		cannotBeReplaced(t, func(file string) error { return os.MkdirAll(file+"/full", 0o700) }, false)
	})
}

// cannotBeReplaced puts something in the place of what would replace the file. What was written
// in part is removed: it has the room that more lines need.
func cannotBeReplaced(t *testing.T, obstruct func(file string) error, removed bool) {
	on(t, hnsemu.WS2022, func(r *rig) {
		web(r)
		if err := obstruct(r.settings.Journal + ".new"); err != nil {
			r.Fatal(err)
		}
		r.restart()
		r.begin()
		r.set("new", "10.96.0.12", "10.244.2.2") // the first write of this process
		r.sync()
		r.set("last", "10.96.0.13", "10.244.2.2")
		r.sync()
		text := r.recorded()
		if strings.Count(text, "tandem-hns") != 1 {
			r.Errorf("journal %q", text)
		}
		if _, err := os.Lstat(r.settings.Journal + ".new"); os.IsNotExist(err) != removed {
			r.Errorf("what was written in part: %v", err)
		}
	})
}

// recorded demands that all load balancers are in the journal, and returns its text.
func (r *rig) recorded() string {
	r.Helper()
	text, err := os.ReadFile(r.settings.Journal)
	for _, lb := range r.emu.Balancers() {
		if !strings.Contains(string(text), "\nlb "+lb.ID+"\n") {
			r.Errorf("%s is not in the journal, %v", lb.ID, err)
		}
	}
	return string(text)
}
