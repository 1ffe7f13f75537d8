// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

func TestTriggers(t *testing.T) {
	start := time.Unix(1000, 0)
	tr := track.New()
	tr.SetHost(host("z"))
	at := func(n, svc string, second int) *model.Slice {
		s := slice(n, svc, 80, "10.0.0.1")
		s.Triggered = start.Add(time.Duration(second) * time.Second)
		return s
	}
	expect := func(what, want string) {
		t.Helper()
		tr.Flush()
		var got []string
		for _, g := range tr.Triggered() {
			got = append(got, fmt.Sprint(g.Service.Name, g.At.Unix()-start.Unix()))
		}
		slices.Sort(got)
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	tr.Set(service("a", "10.96.0.1", 80))
	tr.Set(service("b", "10.96.0.2", 80))
	tr.Set(at("a-1", "a", 1))
	expect("nobody follows", "")
	tr.CollectTriggers(start)
	tr.Set(at("a-1", "a", -1))
	expect("older than the start", "")
	tr.Set(at("a-1", "a", 2))
	tr.Set(at("a-1", "a", 3))
	tr.Set(at("b-1", "b", 4))
	expect("three changes", "a2 a3 b4")
	tr.Set(at("b-1", "b", 4))
	expect("the same again", "")
	tr.Set(at("x-1", "x", 5))
	expect("of no Service", "")
	tr.Set(at("a-1", "a", 6))
	tr.Set(at("b-1", "b", 6))
	tr.Delete(&model.Slice{Name: model.SliceName{Namespace: "ns", Name: "a-1"}})
	expect("deleted", "b6")
	for i := range 10000 {
		tr.Set(at("b-1", "b", 10+i))
	}
	tr.Flush()
	if n := len(tr.Triggered()); n != 4096 {
		t.Errorf("%d triggers of a flood", n)
	}
	tr.Set(at("b-1", "b", 1))
	expect("after the flood", "b1")
}

func TestServicesByName(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("z"))
	tr.Set(service("a", "10.96.0.1", 80))
	tr.Set(service("b", "10.96.0.2", 80))
	tr.Flush()
	tr.Set(service("b", "10.96.0.3", 80))
	tr.Delete(&model.Service{Name: name("a")})
	tr.Flush()
	var got []string
	for n, s := range tr.Flushed() {
		got = append(got, fmt.Sprintf("%s %t %d", n, s.Object != nil, len(s.Ports)))
	}
	slices.Sort(got)
	if fmt.Sprint(got) != "[ns/a false 0 ns/b true 1]" || tr.Len() != 1 {
		t.Errorf("flushed %v, %d Services", got, tr.Len())
	}
	if tr.Service(name("b")).Object == nil || tr.Service(name("a")).Object != nil {
		t.Error("wrong Services by name")
	}
}
