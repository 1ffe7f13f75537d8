// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// All that start at once have one number, the next process has it too, and no other user can read it.
func TestSaltIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "salt")
	var all [8]uint64
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() {
			var err error
			if all[i], err = saltAt(path); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, s := range all {
		if s != all[0] || s == 0 {
			t.Fatalf("numbers: %x", all)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A file that cannot be understood is replaced.
func TestSaltCutShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "salt")
	for _, text := range []string{"", "zz", "0123456789abcdef0"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		first, err := saltAt(path)
		second, again := saltAt(path)
		if err != nil || again != nil || first != second {
			t.Errorf("%q: %x, %v, then %x, %v", text, first, err, second, again)
		}
	}
}

// Where nothing can be kept, the number is of one process.
func TestSaltWithoutAFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "salt")
	first, err := saltAt(path)
	second, again := saltAt(path)
	if err == nil || again == nil || first == second {
		t.Errorf("%x, %v, then %x, %v", first, err, second, again)
	}
}
