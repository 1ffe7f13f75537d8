// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// However many objects are invalid, a bounded number of problems is kept; the others are
// counted, and named when what is corrected makes room.
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
	named := (mostProblems + 2) / 3 // objects: the last one has room for the first of its problems alone
	check(3 * (objects - named))
	if last := d.problems[key(named-1)]; len(last) != 1 || last[0].Detail != "first, and 2 more problems" {
		t.Errorf("the last object that has room: %+v", last)
	}
	for n := range objects {
		d.note(key(n), invalid(n), false) // the same once more
	}
	check(3 * (objects - named))
	for n := range named {
		d.note(key(n), nil, false) // corrected: others are named in their place
	}
	check(3 * (objects - named - mostProblems))
	for _, p := range d.list()[:mostProblems] {
		if !strings.HasPrefix(p.Object, "Service ns/s") || p.Detail != "the first of 3 problems, which are listed when the object changes" {
			t.Fatalf("in their place: %+v", p)
		}
	}
	for n := range objects - 10 {
		d.note(key(n), nil, false)
	}
	if all := d.list(); len(all) != 10 || d.omitted != 0 {
		t.Errorf("%d problems, the last 10 objects are invalid", len(all))
	}
	d.note(key(objects-1), invalid(objects-1), true)
	if all := d.problems[key(objects-1)]; len(all) != 3 || !d.rejected[key(objects-1)] {
		t.Errorf("where there is room: %+v", all)
	}
	for n := range objects {
		d.note(key(n), nil, false)
	}
	if all := d.list(); len(all) != 0 || d.kept != 0 || len(d.waiting) != 0 || len(d.rejected) != 0 {
		t.Errorf("%d problems of nothing", len(all))
	}
}

// An object that waited is named as its own problems name it, whatever kind it is, and listed
// under the Service that they are about.
func TestNamesOfObjectsThatWaited(t *testing.T) {
	d := newDispatcher(nil, "n", defaultLimits())
	d.hasNode = true
	full := objectKey{"services", name{"ns", "full"}}
	d.note(full, make([]model.Problem, mostProblems), false)
	var want []model.Problem
	for _, k := range append(routes(nil), services(nil), endpointSlices(nil), ownNode(nil, "n"), serviceCIDRs(nil)) {
		first := model.Problem{Object: reflect.TypeOf(k.item()).Elem().Name() + " ns/a", Of: model.ServiceName{Namespace: "ns", Name: "a"}, Why: model.WhyBadAddress, Detail: "address"}
		d.note(objectKey{k.resource, name{"ns", "a"}}, []model.Problem{first}, false)
		first.Detail = "details omitted until the object changes"
		want = append(want, first)
	}
	d.note(full, nil, false)
	for _, w := range want {
		if all := d.list(); !slices.Contains(all, w) {
			t.Errorf("%+v, want %+v", all, w)
		}
	}
}
