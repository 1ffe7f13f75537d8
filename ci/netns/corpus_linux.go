// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-proxy/tandem/core/test/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// partOnly is set by `make test` and `make verify`, which have not the time for every scenario in every variant
// of a mode; see ci/test.
const partOnly = "TANDEM_TEST_PART_OF_CORPUS"

// Part is the folder of all scenarios; with TANDEM_TEST_PART_OF_CORPUS in the environment some of each n of them,
// by their numbers from 0 on.
func Part(t *testing.T, n int, some ...int) string {
	t.Helper()
	dir := conformance.Corpus(t)
	if os.Getenv(partOnly) == "" {
		return dir
	}
	all, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(all) < n {
		t.Fatal(all, err)
	}
	to := t.TempDir()
	for i := range all {
		if !slices.Contains(some, i%n) {
			continue
		}
		text, err := os.ReadFile(all[i])
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(all[i])), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s is set: %d scenarios of each %d", partOnly, len(some), n)
	return to
}

// Corpus runs all scenarios of a folder as parallel subtests and logs the sum.
// Where network namespaces cannot be made the test is skipped with the reason.
func Corpus(t *testing.T, dir string, make Make) {
	if err := lab.Available(); err != nil {
		t.Skip(err)
	}
	all, err := conformance.Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var sum Report
	t.Cleanup(func() { t.Log(sum) }) // after the parallel subtests
	for _, s := range all {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			r, err := Run(t.Context(), s, t.TempDir(), make)
			for _, f := range r.Failures {
				t.Error(f)
			}
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			sum.add(r)
		})
	}
}
