// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// View is the content of an HNS and a journal at one time. It is immutable.
type View struct {
	known   *inventory // of this View alone: used without its lock
	version Version
	network Network
	config  *config.Config
}

// Look reads HNS and the journal, and changes neither: a proxy may be using them.
// It closes h.
func Look(ctx context.Context, h HNS, c *config.Config, s Settings) (_ *View, err error) {
	defer func() { err = errors.Join(err, h.Close()) }()
	s, v, n, err := find(ctx, h, c, s)
	if err != nil {
		return nil, err
	}
	if err := v.usable(); err != nil {
		return nil, err
	}
	j, err := readJournal(s.Journal)
	if err != nil {
		return nil, err
	}
	d := newDriver(h, v, s, j)
	if err := d.observe(ctx); err != nil {
		return nil, err
	}
	return &View{known: d.known, version: v, network: n, config: c}, nil
}

const (
	ownerTandem = "tandem"
	ownerPod    = "pod"
	ownerOther  = "another"
)

// Dump is everything on a network that may concern Services. The JSON form of
// these types is stable: fields are added, not changed.
type Dump struct {
	Version           string `json:"version"` // of HNS
	Network           string `json:"network"`
	Type              string `json:"type"`
	WithoutDSR        int    `json:"withoutDSR"`        // load balancers that each reserve 64 ports of the node
	Degraded          int    `json:"degraded"`          // load balancers whose rules are not in the virtual switch
	DegradedEndpoints int    `json:"degradedEndpoints"` // endpoints that have lost their port of the virtual switch
	Objects           []Item `json:"objects"`
}

// Item is an endpoint, a load balancer, or a line of the journal.
type Item struct {
	Object string `json:"object"`
	Owner  string `json:"owner"` // tandem, pod or another
	ID     string `json:"id"`
	Detail string `json:"detail,omitempty"`
}

// Dump lists endpoints, load balancers, and load balancers that only the journal has.
func (v *View) Dump() Dump {
	t := v.known
	d := Dump{Version: v.version.String(), Network: v.network.Name, Type: v.network.Type, Objects: []Item{}}
	for _, e := range t.endpoints {
		d.Objects = append(d.Objects, endpointItem(e))
	}
	slices.SortFunc(d.Objects, func(a, b Item) int { return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.ID, b.ID)) })
	for _, k := range slices.SortedFunc(maps.Keys(t.balancers), Key.compare) {
		d.Objects = append(d.Objects, v.balancerItem(k))
	}
	for _, k := range slices.SortedFunc(maps.Keys(t.surplus), Key.compare) {
		for _, id := range t.surplus[k] {
			d.Objects = append(d.Objects, Item{Object: k.String(), Owner: ownerTandem, ID: id})
		}
	}
	for _, id := range v.known.absent() {
		d.Objects = append(d.Objects, Item{Object: "journal", Owner: ownerTandem, ID: id, Detail: "HNS has no such load balancer"})
	}
	d.WithoutDSR, d.Degraded, d.DegradedEndpoints = t.now.withoutDSR, t.now.balancers, t.now.remote+t.now.local
	return d
}

func (v *View) balancerItem(k Key) Item {
	t := v.known
	have := t.balancers[k]
	i := Item{Object: k.String(), Owner: ownerOther, ID: have.lb.ID, Detail: "of several frontends"}
	if have.single {
		i.Detail = t.readBalancer(k, have.lb).String()
	}
	if t.journal.owns(have.lb.ID) {
		i.Owner = ownerTandem
	}
	i.Detail += have.lb.Health.String()
	return i
}

func endpointItem(e Endpoint) Item {
	i := Item{ID: e.ID, Owner: ownerPod, Object: "endpoint", Detail: e.Name}
	for _, a := range addresses(e) {
		i.Object += " " + a.String()
	}
	if e.remote() {
		i.Object, i.Owner = "remote "+i.Object, ownerOther
	}
	if k, ok := ownedKey(e); ok {
		i.Object, i.Owner = k.String(), ownerTandem
	}
	if node := providerOf(e); node.IsValid() {
		i.Detail += " behind " + node.String()
	}
	if e.degraded() {
		i.Detail += " (degraded)"
	}
	i.Detail += e.Health.String()
	return i
}

// Diff lists how an HNS differs from the desired state.
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

const (
	Missing State = "missing" // wanted, not in HNS
	Differs State = "differs" // owned, not as wanted
	Foreign State = "foreign" // another program's load balancer has the frontend
	Left    State = "left"    // owned, not wanted
	Lost    State = "lost"    // in the journal, not in HNS
)

// Diff compares the view with what ports need on a host. Endpoints that no load balancer
// needs any more are no difference: they are deleted after a minute.
func (v *View) Diff(host *model.Host, ports []*model.Port) Diff {
	compiler := NewCompiler(options(v.version, v.network, v.config))
	want, _ := dataplane.Compile(compiler, host, ports)
	delete(want, nodeAddress(model.IPv4)) // no objects of HNS: those that depend on them are compared
	delete(want, nodeAddress(model.IPv6))
	for k, v := range want {
		if v.Balancer != nil {
			b := *v.Balancer
			b.Namespace = "" // not stored in HNS
			v.Balancer = &b
			want[k] = v
		}
	}
	have := v.known.objects()
	d := Diff{Wanted: len(want), Changes: []Change{}}
	for _, k := range slices.SortedFunc(maps.Keys(want), Key.compare) {
		got, owned := have[k]
		switch state := v.stateOf(k, want[k], got, owned); state {
		case "":
		case Differs, Foreign:
			d.Changes = append(d.Changes, Change{k.String(), state, want[k].String(), v.found(k)})
		default:
			d.Changes = append(d.Changes, Change{Object: k.String(), State: state, Wanted: want[k].String()})
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(have), Key.compare) {
		if _, ok := want[k]; ok {
			continue
		}
		switch k.Kind {
		case KindBalancer:
			d.Changes = append(d.Changes, Change{Object: k.String(), State: Left, Found: v.found(k)})
		case KindSurplus:
			d.Changes = append(d.Changes, Change{Object: k.String(), State: Left, Found: have[k].String()})
		}
	}
	for _, id := range v.known.absent() {
		d.Changes = append(d.Changes, Change{Object: "load balancer " + id, State: Lost})
	}
	return d
}

// stateOf returns the state of a wanted object; empty for no difference.
func (v *View) stateOf(k Key, want, got Value, owned bool) State {
	_, taken := v.known.balancers[k]
	_, _, adoptable := v.known.adoptable(k, want)
	switch {
	case owned && got.equal(want), !owned && k.Kind != KindBalancer && adoptable:
		return ""
	case owned:
		return Differs
	case taken:
		return Foreign
	}
	return Missing
}

// found describes the object found for a key.
func (v *View) found(k Key) string {
	t := v.known
	if e, ok := t.own(k); ok {
		return t.readEndpoint(k, e).String()
	}
	have := t.balancers[k]
	if !have.single {
		return fmt.Sprintf("load balancer %s of several frontends", have.lb.ID)
	}
	return t.readBalancer(k, have.lb).String()
}
