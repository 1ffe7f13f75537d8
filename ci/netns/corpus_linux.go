// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"sync"
	"testing"

	"github.com/tandem-proxy/tandem/core/test/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

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
