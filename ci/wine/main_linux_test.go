// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestMain has the tests' folders in the user's cache: on Windows no folder above an input
// may be writable by Everyone, and /tmp is.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	cache, err := os.UserCacheDir()
	if err == nil {
		cache = filepath.Join(cache, "tandem")
		err = os.MkdirAll(cache, 0o755)
	}
	var dir string
	if err == nil {
		dir, err = os.MkdirTemp(cache, "wine-")
	}
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	return m.Run()
}
