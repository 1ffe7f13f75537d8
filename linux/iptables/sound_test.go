// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Whatever a rule leads to is there and was made before. To each chain that is
// not always there something leads.
func TestNothingDangles(t *testing.T) {
	c := NewCompiler(Options{})
	for seed := range uint64(50) {
		w := conformance.RandomWorld(conformance.NewRand(seed))
		objects, _ := dataplane.Compile(c, w.Host, w.Ports())
		entered := map[chainID]bool{}
		c.Base(w.Host, func(k Key, _ Value) { entered[k.chainID] = true })
		for k, v := range objects {
			if back := xtables.List(slices.Collect(v.All())...); back != v {
				t.Errorf("%q comes back as %q", v, back)
			}
			for r := range v.All() {
				if r.Unparsed != "" {
					t.Fatalf("seed %d: %s: %q", seed, k, r)
				}
				if k.Rank != rankChain && position(k.chainID, r) != k.Position {
					t.Errorf("%s belongs to %v", k, position(k.chainID, r))
				}
				if classOf(r.Chain()) == unowned {
					continue
				}
				to := Key{chainID: chainID{Family: k.Family, Table: k.Table, Chain: r.Chain()}}
				entered[to.chainID] = true
				if _, ok := objects[to]; !ok || c.Rank(to) >= c.Rank(k) && classOf(k.Chain) != whole {
					t.Errorf("seed %d: %s (rank %d) leads to %s (rank %d, there: %t)", seed, k, c.Rank(k), to, c.Rank(to), ok)
				}
			}
		}
		for k := range objects {
			if classOf(k.Chain) != unowned && !entered[k.chainID] {
				t.Errorf("seed %d: nothing leads to %s", seed, k)
			}
		}
	}
}

// Each of n endpoints gets its share, to within what the kernel can express.
func TestSharesAreEven(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7, 100, 5000} {
		p := portCompiler{host: &model.Host{}, port: &model.Port{}}
		var rules []xtables.Rule
		p.balanceRules(make([]model.Endpoint, n), func(r *xtables.Rule) {
			own := *r
			own.Matches = slices.Clone(r.Matches)
			rules = append(rules, own)
		})
		left := 1.0
		for i, r := range rules {
			share := left
			for _, m := range r.Matches {
				share = left * float64(m.(xtables.Chance)) / (1 << 31)
			}
			if math.Abs(share*float64(n)-1) > 1e-5 {
				t.Errorf("endpoint %d of %d has the share %g", i, n, share)
			}
			left -= share
		}
		if math.Abs(left) > 1e-9 {
			t.Errorf("of %d endpoints none is chosen with a chance of %g", n, left)
		}
	}
}

// What a Service costs, in rules: one to find it, one that masquerades, one for
// each endpoint, one for other ports of its address.
func TestRuleCount(t *testing.T) {
	c := NewCompiler(Options{})
	own, ways := 0, 0
	for _, p := range manyPorts(16) {
		c.Port(benchHost, p, func(k Key, v Value) {
			if k.Rank == rankBranch {
				ways += v.Len()
			} else {
				own += v.Len()
			}
		})
	}
	if own != 16*8 || ways != 16*8 { // the ways are shared: 8 for all 16
		t.Errorf("%d rules, and %d emitted on the ways to them", own, ways)
	}
}

// Replacing an endpoint changes one chain, however many Services there are.
func TestEndpointReplaced(t *testing.T) {
	c := NewCompiler(Options{})
	ports := manyPorts(2)
	objects, _ := dataplane.Compile(c, benchHost, ports)
	ports[0].Frontends[0].On[0].Pool.Endpoints[2].Addr = ports[1].Frontends[0].On[0].Pool.Endpoints[2].Addr
	after, _ := dataplane.Compile(c, benchHost, ports)
	changed := 0
	for k, v := range after {
		if objects[k] != v {
			changed++
		}
	}
	if changed != 1 || len(after) != len(objects) {
		t.Errorf("%d objects changed, %d became %d", changed, len(objects), len(after))
	}
}
