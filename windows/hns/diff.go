package hns

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Diff is how an HNS differs from what it should hold.
type Diff struct {
	Wanted  int      `json:"wanted"` // objects that HNS should hold
	Changes []Change `json:"changes"`
}

// Change is one difference.
type Change struct {
	Object string `json:"object"`
	State  State  `json:"state"`
	Wanted string `json:"wanted,omitempty"`
	Found  string `json:"found,omitempty"`
}

// State is the kind of a difference.
type State string

// The states.
const (
	Missing State = "missing" // wanted, and not in HNS
	Differs State = "differs" // ours, and not as wanted
	Foreign State = "foreign" // in its place is one that another has made
	Left    State = "left"    // ours, and not wanted
	Lost    State = "lost"    // in the journal, and not in HNS
)

// Diff compares what was there with what ports need on a host. Endpoints that
// nothing needs any more are no difference: they linger for a minute.
func (v *View) Diff(host *model.Host, ports []*model.Port) Diff {
	compiler := NewCompiler(options(v.version, v.network, v.config))
	want, _ := dataplane.Compile(compiler, host, ports)
	delete(want, nodeAddress(model.IPv4)) // no objects of HNS: what follows from them is compared
	delete(want, nodeAddress(model.IPv6))
	have := v.driver.objects()
	d := Diff{Wanted: len(want), Changes: []Change{}}
	for _, k := range slices.SortedFunc(maps.Keys(want), Key.compare) {
		got, ours := have[k]
		switch state := v.stateOf(k, want[k], got, ours); state {
		case "":
		case Differs, Foreign:
			d.Changes = append(d.Changes, Change{k.String(), state, want[k].String(), v.found(k)})
		default:
			d.Changes = append(d.Changes, Change{Object: k.String(), State: state, Wanted: want[k].String()})
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(have), Key.compare) {
		if _, ok := want[k]; !ok && k.Kind == KindBalancer {
			d.Changes = append(d.Changes, Change{Object: k.String(), State: Left, Found: v.found(k)})
		}
	}
	for _, id := range v.absent() {
		d.Changes = append(d.Changes, Change{Object: "load balancer " + id, State: Lost})
	}
	return d
}

// stateOf judges one wanted object; empty is as it should be.
func (v *View) stateOf(k Key, want, got Value, ours bool) State {
	_, taken := v.driver.table.balancers[k]
	_, endpoint := v.driver.table.find(Target{Addr: k.Addr})
	switch {
	case ours && got.equal(want), !ours && k.Kind == KindRemote && endpoint: // another's endpoint is as good
		return ""
	case ours:
		return Differs
	case taken:
		return Foreign
	}
	return Missing
}

// found describes what is in the place of a key.
func (v *View) found(k Key) string {
	t := v.driver.table
	if e, ok := t.own(k); ok {
		return readEndpoint(t.facts, k, e).String()
	}
	have := t.balancers[k]
	if !have.single {
		return fmt.Sprintf("load balancer %s of several frontends", have.lb.ID)
	}
	return t.readBalancer(t.facts, k, have.lb).String()
}
