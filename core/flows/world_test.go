// SPDX-License-Identifier: Apache-2.0

package flows_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/flows/flowtest"
	"github.com/tandem-proxy/tandem/core/model"
)

// world is a set of UDP ports that changes at random, the flow table of its host
// and clients that never stop sending from the same source ports.
type world struct {
	rng   *rand.Rand
	ports map[string]*model.Port
	table flowtest.Table
	conns []flowtest.Conn
}

var (
	worldFronts = []string{vip, lb, "203.0.113.6:53", nodePort, "0.0.0.0:30054", "10.96.0.11:53"}
	// The last two are not ours although their ports are.
	worldTargets = append(list("192.0.2.1:30053", "192.0.2.1:30054", "198.51.100.7:30053", "198.51.100.8:53"),
		worldFronts[0], worldFronts[1], worldFronts[2], worldFronts[5])
)

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), ports: map[string]*model.Port{}}
	for i := range 6 {
		for _, dst := range worldTargets {
			w.conns = append(w.conns, flowtest.Conn{
				Proto:  model.UDP,
				Client: netip.AddrPortFrom(netip.MustParseAddr("10.244.1.10"), uint16(1000+i)),
				Dst:    netip.MustParseAddrPort(dst),
			})
		}
	}
	return w
}

// step changes some ports and returns the changes. No two ports have a frontend in
// common.
func (w *world) step() []model.Delta {
	changed := map[string]*model.Port{"a": nil, "b": nil, "c": nil}
	for name := range changed {
		if w.rng.IntN(3) == 0 {
			delete(changed, name)
		}
	}
	taken := map[netip.AddrPort]bool{}
	for name, p := range w.ports {
		if _, ok := changed[name]; !ok {
			for _, f := range p.Frontends {
				taken[f.At] = true
			}
		}
	}
	var deltas []model.Delta
	for name := range changed {
		d := model.Delta{Old: w.ports[name], New: w.randomPort(name, taken)}
		if d.Old == nil && d.New == nil {
			continue
		}
		deltas = append(deltas, d)
		delete(w.ports, name)
		if d.New != nil {
			w.ports[name] = d.New
		}
	}
	w.program()
	return deltas
}

func (w *world) randomPort(name string, taken map[netip.AddrPort]bool) *model.Port {
	if w.rng.IntN(4) == 0 {
		return nil
	}
	var fronts, endpoints, draining []string
	for _, f := range worldFronts {
		if at := netip.MustParseAddrPort(f); !taken[at] && w.rng.IntN(3) == 0 {
			taken[at] = true
			fronts = append(fronts, f)
		}
	}
	if len(fronts) == 0 {
		return nil
	}
	for _, e := range list(epA, epB, epC) {
		switch w.rng.IntN(4) {
		case 0, 1:
			endpoints = append(endpoints, e)
		case 2:
			draining = append(draining, e)
		}
	}
	return port(name, fronts, endpoints, draining...)
}

// owner returns the port that a destination belongs to, nil if none.
func (w *world) owner(dst netip.AddrPort) *model.Port {
	for _, p := range w.ports {
		for _, f := range p.Frontends {
			local := dst.Addr() == host().IPs[0] && f.At.Addr().IsUnspecified()
			if f.At == dst || local && f.At.Port() == dst.Port() {
				return p
			}
		}
	}
	return nil
}

func (w *world) program() {
	w.table.Translate(func(_ model.Proto, client, dst netip.AddrPort) netip.AddrPort {
		p := w.owner(dst)
		if p == nil || len(p.Pools()) == 0 {
			return dst
		}
		e := p.Pools()[0].Endpoints
		return e[int(client.Port())%len(e)].Addr
	})
}

func (w *world) send() {
	for _, c := range w.conns {
		w.table.Send(c)
	}
}

// ends returns the endpoints that may serve dst; with none it is dst itself.
func (w *world) ends(dst netip.AddrPort) flows.Set {
	p := w.owner(dst)
	if p == nil {
		return flows.SetOf(dst)
	}
	ends := slices.Clone(p.Draining)
	for _, pool := range p.Pools() {
		for _, e := range pool.Endpoints {
			ends = append(ends, e.Addr)
		}
	}
	if len(p.Pools()) == 0 {
		ends = append(ends, dst)
	}
	return flows.SetOf(ends...)
}

// After each change every flow leads to where its destination's port is served,
// and no flow that did so already was cut.
func TestRandomWorlds(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(seed)
			w.program()
			for range 12 {
				w.send()
				stale := flows.Stale(host(), w.step())
				before := w.table.Flows()
				if _, err := w.table.Delete(t.Context(), stale, flowtest.IndexOf(stale).Stale); err != nil {
					t.Fatal(err)
				}
				w.check(t, before)
			}
		})
	}
}

// The same holds when changes pile up before anything is deleted, while clients
// go on sending.
func TestRandomWorldsMerged(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(seed)
			w.program()
			for range 6 {
				var waiting flows.Index
				for range 3 {
					w.send()
					for _, m := range flows.Stale(host(), w.step()) {
						waiting.Add(m)
					}
				}
				if _, err := w.table.Delete(t.Context(), waiting.Matches(), waiting.Stale); err != nil {
					t.Fatal(err)
				}
				w.check(t, nil)
			}
		})
	}
}

func (w *world) check(t *testing.T, before map[flowtest.Conn]flows.Flow) {
	t.Helper()
	after := w.table.Flows()
	for c, f := range after {
		if !w.ends(c.Dst).Has(f.From) {
			t.Errorf("%v still leads to %v", c.Dst, f.From)
		}
	}
	for c, f := range before {
		_, stays := after[c]
		refused := w.owner(c.Dst) != nil && len(w.owner(c.Dst).Pools()) == 0 && !f.Translated()
		if !stays && !refused && w.ends(c.Dst).Has(f.From) {
			t.Errorf("a good flow to %v by way of %v was cut", f.From, c.Dst)
		}
	}
}
