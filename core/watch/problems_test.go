// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// However many objects are invalid, a bounded number of problems is kept; the others are
// counted, and named when what is corrected makes room.
func TestProblemsOfManyObjectsAreBounded(t *testing.T) {
	d := newDispatcher(nil, "here", defaultLimits())
	d.own = &model.Node{}
	const objects = 20 * mostProblems
	key := func(n int) model.Key { return model.Key{Kind: "Service", Namespace: "ns", Name: fmt.Sprint("s", n)} }
	invalid := func(n int) []model.Problem {
		object := fmt.Sprint("Service ns/s", n)
		return []model.Problem{{Object: object, Detail: "first"}, {Object: object, Detail: "second"}, {Object: object, Detail: "third"}}
	}
	check := func(more int) {
		t.Helper()
		kept := len(d.problems.all())
		all := d.list()
		if last := all[len(all)-1].Detail; kept > mostProblems || kept != d.problems.kept || len(all) != kept+1 || last != fmt.Sprintf("%d more problems with its objects", more) {
			t.Fatalf("%d problems are kept (%d), %d passed on, the last one is %q", kept, d.problems.kept, len(all), last)
		}
	}
	for n := range objects {
		d.note(key(n), invalid(n), false)
	}
	named := (mostProblems + 2) / 3 // objects: the last one has room for the first of its problems alone
	check(3 * (objects - named))
	if last := d.problems.of["ns"].objects[key(named-1)]; len(last) != 1 || last[0].Detail != "first, and 2 more problems" {
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
	if all := d.list(); len(all) != 10 || d.problems.omitted != 0 {
		t.Errorf("%d problems, the last 10 objects are invalid", len(all))
	}
	d.note(key(objects-1), invalid(objects-1), true)
	if all := d.problems.of["ns"].objects[key(objects-1)]; len(all) != 3 || !d.rejected[key(objects-1)] {
		t.Errorf("where there is room: %+v", all)
	}
	for n := range objects {
		d.note(key(n), nil, false)
	}
	if all := d.list(); len(all) != 0 || d.problems.kept != 0 || len(d.problems.of) != 0 || len(d.rejected) != 0 {
		t.Errorf("%d problems of nothing", len(all))
	}
}

// A namespace with thousands of invalid objects leaves others their share of the places, whoever came first.
func TestProblemsOfNamespacesShareThePlaces(t *testing.T) {
	invalid := func(namespace string, n int) (model.Key, []model.Problem) {
		all := make([]model.Problem, 3)
		for i := range all {
			all[i] = model.Problem{Object: fmt.Sprintf("Service %s/s%d", namespace, n), Detail: fmt.Sprint(i)}
		}
		return model.Key{Kind: "Service", Namespace: namespace, Name: fmt.Sprint("s", n)}, all
	}
	d := newDispatcher(nil, "here", defaultLimits())
	set := func(namespace string, objects int) {
		for n := range objects {
			s, all := invalid(namespace, n)
			d.note(s, all, false)
		}
	}
	check := func(when string, want map[string]int) {
		t.Helper()
		kept := map[string]int{}
		for _, p := range d.problems.all() {
			kept[strings.SplitN(strings.TrimPrefix(p.Object, "Service "), "/", 2)[0]]++
		}
		for namespace, n := range want {
			if kept[namespace] < n {
				t.Errorf("%s %s has %d problems of %d, at least %d are wanted", when, namespace, kept[namespace], d.problems.kept, n)
			}
		}
	}
	set("evil", 20*mostProblems)
	set("shop", 100)
	check("after a flood", map[string]int{"shop": 300})
	set("evil", 20*mostProblems) // once more
	check("after another", map[string]int{"shop": 300})
	for i := range 20 {
		set(fmt.Sprint("n", i), 10)
	}
	check("beside twenty more", map[string]int{"shop": 40, "n0": 30, "n19": 30, "evil": 40})
	for _, namespace := range []string{"evil", "shop"} {
		for n := range 20 * mostProblems {
			s, _ := invalid(namespace, n)
			d.note(s, nil, false)
		}
	}
	if got, more := len(d.problems.all()), d.problems.omitted; got > 20*30 || got < 20*10 || more != 0 {
		t.Errorf("%d problems of the others, and %d more", got, more)
	}
}

// An object that waited is named as its own problems name it, whatever kind it is, and listed
// under the Service that they are about.
func TestNamesOfObjectsThatWaited(t *testing.T) {
	d := newDispatcher(nil, "n", defaultLimits())
	d.own = &model.Node{}
	full := model.Key{Kind: "Service", Namespace: "ns", Name: "full"}
	d.note(full, make([]model.Problem, mostProblems), false)
	var want []model.Problem
	for _, k := range append(routes(), services(), endpointSlices(), ownNode("n"), serviceCIDRs()) {
		first := model.Problem{Object: k.typeName() + " ns/a", Of: model.ServiceName{Namespace: "ns", Name: "a"}, Why: model.WhyBadAddress, Detail: "address"}
		d.note(k.keyOf(name{"ns", "a"}), []model.Problem{first}, false)
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
