// SPDX-License-Identifier: Apache-2.0

package question

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// compared are the answers that nodes are compared by.
func compared() []any {
	return []any{Status{}, Services{}, Explanation{}, Trace{}, Drift{}, history.Document{}, Preview{}, Monitor{}}
}

// No answer is compared by a time, which every node has its own of, and what a node is called is known as that.
func TestTimesAreNotCompared(t *testing.T) {
	var check func(of reflect.Type, path string, within []reflect.Type)
	check = func(of reflect.Type, path string, within []reflect.Type) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if of == reflect.TypeFor[time.Time]() || strings.HasSuffix(path, ".node") && len(within) == 1 {
			t.Errorf("%s is compared", path)
			return
		}
		if of.Kind() != reflect.Struct || slices.Contains(within, of) {
			return
		}
		for i := range of.NumField() {
			f := of.Field(i)
			if tag := f.Tag.Get(acrossTag); tag != skipped && tag != ownText && f.IsExported() {
				check(f.Type, path+"."+nameOf(f), append(within, of))
			}
		}
	}
	for _, answer := range compared() {
		check(reflect.TypeOf(answer), reflect.TypeOf(answer).Name(), nil)
	}
}

// What nodes have of their own, its mention in texts, and the order of lists are no differences; an entry that one of
// them lacks is one, whatever it has.
func TestComparison(t *testing.T) {
	answer := func(node, from, why string, endpoints ...string) Explanation {
		e := Explanation{Node: node, From: from, Mode: "nftables", Steps: []oracle.Step{{About: oracle.AboutOrigin, Result: "pod", Why: why}}}
		for _, x := range endpoints {
			e.Problems = append(e.Problems, Problem{Object: x, Reason: "Failing", Detail: "of " + x})
		}
		return e
	}
	var c Comparison[string]
	for _, a := range []Explanation{
		answer("node-3", "10.244.3.2", "10.244.3.2 is a pod of node-3, not of node-33", "x", "y"),
		answer("node-1", "10.244.1.2", "10.244.1.2 is a pod of node-1, not of node-33", "y", "x"),
		answer("node-2", "10.244.2.2", "10.244.2.2 is a pod of node-3, not of node-33", "x", "z"),
	} {
		c.Add(a.Node, "tandem", a.Node, a)
	}
	c.Fail("node-0", "tandem", errors.New(""))
	a, most, ok := c.Result()
	want := "[{node-2 problems[y Failing] present } {node-2 problems[z Failing]  present} {node-2 steps[origin].why <from> is a pod of <node>, not of node-33 <from> is a pod of node-3, not of node-33}]"
	if fmt.Sprint(a.Differences) != want || most != "node-1" || !ok {
		t.Errorf("%v, most is %s", a.Differences, most)
	}
	if fmt.Sprint(a.Nodes) != "[{{node-0 tandem no reason given} false} {{node-1 tandem } false} {{node-2 tandem } true} {{node-3 tandem } false}]" {
		t.Error(a.Nodes)
	}
	if a, _, ok := new(Comparison[string]).Result(); ok || len(a.Nodes) != 0 {
		t.Error(a)
	}
}

// However many nodes differ, and however large their answers are, so much of them is kept and listed; those that
// are not compared are counted.
func TestComparisonIsBounded(t *testing.T) {
	var c Comparison[int]
	reasons := make([]string, 1000)
	for i := range 100 {
		for k := range reasons {
			reasons[k] = fmt.Sprintf("%d-%d", i, k) + strings.Repeat("x", 1000)
		}
		c.Add(fmt.Sprintf("node-%03d", i), "tandem", i, Status{Reasons: reasons})
	}
	if c.size > maxCompared || c.size < maxCompared/2 {
		t.Errorf("%d bytes are kept", c.size)
	}
	a, most, _ := c.Result()
	if len(a.Differences) != maxDifferences || a.Unlisted == 0 || most != 0 {
		t.Errorf("%d differences, %d unlisted, most is %d", len(a.Differences), a.Unlisted, most)
	}
	for _, n := range a.Nodes[1:] {
		if !n.Differs {
			t.Fatalf("%s is alike", n.Node)
		}
	}
}

// A node or an address that an answer is about is the same for all nodes, also for the one that is called so.
func TestNodesThatAnswersAreAboutAreCompared(t *testing.T) {
	var c Comparison[int]
	for i, node := range []string{"node-1", "node-2", "node-3"} {
		s := Services{Node: node, Services: []ServiceDetail{{Service: Service{Name: "shop/web"}}}}
		for _, on := range []string{"node-1", "node-2", "node-3"} {
			s.Services[0].Endpoints = append(s.Services[0].Endpoints, EndpointDetail{Port: "http", Protocol: "TCP", Address: "10.0.0." + on[5:] + ":80", Node: on})
		}
		c.Add(node, "tandem", i, s)
	}
	if a, _, ok := c.Result(); !ok || len(a.Differences) > 0 || a.Unlisted > 0 {
		t.Errorf("%v, and %d more", a.Differences, a.Unlisted)
	}
	var hosts Comparison[int]
	for i, at := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		e := Explanation{Node: "node-" + at[7:], From: at, To: "10.0.0.1:30080"}
		for _, endpoint := range []string{"10.0.0.1:6443", "10.0.0.2:6443"} {
			e.Endpoints = append(e.Endpoints, oracle.Target{Addr: netip.MustParseAddrPort(endpoint)})
		}
		hosts.Add(e.Node, "tandem", i, e)
	}
	if a, _, ok := hosts.Result(); !ok || len(a.Differences) > 0 || a.Unlisted > 0 {
		t.Errorf("%v, and %d more", a.Differences, a.Unlisted)
	}
}

// Nodes of one cluster program different numbers of objects, as each has rules about its own pods: that is no difference.
func TestObjectsOfADataPlaneAreNotCompared(t *testing.T) {
	var c Comparison[int]
	for i, objects := range []int{125, 126, 126} {
		c.Add(fmt.Sprint("node-", i), "tandem", i, Status{Mode: "nftables", Healthy: true, Objects: objects, Writes: uint64(objects)})
	}
	if a, _, ok := c.Result(); !ok || len(a.Differences) > 0 {
		t.Error(a.Differences)
	}
}

// Nodes of two versions agree about a Service until it has what only one of them knows.
func TestNewerFieldCountsWhereItIsSet(t *testing.T) {
	none, set, other := 0, 7, newHasher()
	h := newHasher()
	if h.newer("field", &none); h.sum != newHasher().sum {
		t.Error("a zero field has another hash than none")
	}
	if h.newer("field", &set); h.sum == newHasher().sum {
		t.Error("a field has the hash of none")
	}
	if other.newer("another", &set); h.sum == other.sum {
		t.Error("two fields of one value have the same hash")
	}
}
