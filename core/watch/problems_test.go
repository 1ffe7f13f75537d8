// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// However many objects are invalid, a bounded number of problems is kept; the others are
// counted, and what is corrected makes room.
func TestProblemsOfManyObjectsAreBounded(t *testing.T) {
	d := newDispatcher(nil, "here", defaultLimits())
	d.hasNode = true
	const objects = 20 * mostProblems
	key := func(n int) objectKey { return objectKey{"services", name{"ns", fmt.Sprint("s", n)}} }
	invalid := func(n int) []model.Problem {
		object := fmt.Sprint("Service ns/s", n)
		return []model.Problem{{Object: object, Detail: "first"}, {Object: object, Detail: "second"}, {Object: object, Detail: "third"}}
	}
	check := func(more int) {
		t.Helper()
		kept := 0
		for _, ps := range d.problems {
			kept += len(ps)
		}
		all := d.list()
		if last := all[len(all)-1].Detail; kept > mostProblems || kept != d.kept || len(all) != kept+1 || last != fmt.Sprintf("%d more problems with its objects", more) {
			t.Fatalf("%d problems are kept (%d), %d passed on, the last one is %q", kept, d.kept, len(all), last)
		}
	}
	for n := range objects {
		d.note(key(n), invalid(n), false)
	}
	check(3*objects - mostProblems)
	for n := range objects {
		d.note(key(n), invalid(n), false) // the same once more
	}
	check(3*objects - mostProblems)
	for n := range objects / 2 {
		d.note(key(n), nil, false)
	}
	check(3 * objects / 2)
	d.note(key(objects-1), invalid(objects-1), true)
	check(3*objects/2 - 3)
	if all := d.list(); !strings.Contains(all[0].Object, fmt.Sprint("s", objects-1)) || !d.rejected[key(objects-1)] {
		t.Errorf("the first of %d problems is %+v", len(all), all[0])
	}
	for n := range objects {
		d.note(key(n), nil, false)
	}
	if all := d.list(); len(all) != 0 || d.kept != 0 || len(d.more) != 0 || len(d.rejected) != 0 {
		t.Errorf("%d problems of nothing", len(all))
	}
}
