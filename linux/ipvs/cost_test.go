// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// numbered is port i of many: a cluster IP with these endpoints, of this node if
// local.
func numbered(i int, local bool, endpoints ...byte) *model.Port {
	pool := &model.Pool{}
	for _, e := range endpoints {
		a := netip.AddrFrom4([4]byte{10, 244, 1, e})
		pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(a, uint16(8000+i%8000)), Local: local})
	}
	act := model.Action{Pool: pool}
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)
	return &model.Port{
		ID:        model.PortID{Service: model.ServiceName{Namespace: "ns", Name: fmt.Sprint("s", i)}, Proto: model.TCP},
		Frontends: []model.Frontend{{At: at, On: [model.Origins]model.Action{act, {Pool: pool, SNAT: true}, {Pool: pool, SNAT: true}}}},
	}
}

// TestCostFollowsChange holds that a change costs the same work whatever the
// size of the cluster. An op is one netlink message; it counts them and measures
// no time.
func TestCostFollowsChange(t *testing.T) {
	small, large := costs(t, 10), costs(t, 5000)
	for i, tt := range []struct {
		what string
		most int
	}{
		{"an endpoint of another node replaced", 2},
		{"an endpoint of this node replaced", 4},
		{"an endpoint added", 1},
		{"an endpoint removed", 1},
		{"a Service with three endpoints added", 7},
		{"a Service with three endpoints deleted", 7},
	} {
		if small[i] != large[i] || large[i] > tt.most {
			t.Errorf("%s: %d ops at 10 Services, %d at 5,000, want at most %d", tt.what, small[i], large[i], tt.most)
		}
		t.Logf("%s: %d", tt.what, large[i])
	}
}

func costs(t *testing.T, services int) (all []int) {
	c := NewCompiler(Options{})
	kernel := memory.New[Key](c.Equal, dataplane.Limits{})
	b := dataplane.New(c, kernel)
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(&model.Host{Name: "here"})
	change := func(before, after *model.Port) {
		b.Update([]model.Delta{{Old: before, New: after}})
		w, err := b.Sync(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w.Ops)
	}
	far, near := numbered(0, false, 1, 2, 3), numbered(1, true, 1, 2, 3)
	deltas := []model.Delta{{New: far}, {New: near}}
	for i := 2; i < services; i++ {
		deltas = append(deltas, model.Delta{New: numbered(i, false, 1, 2, 3)})
	}
	b.Update(deltas)
	if _, err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	replaced, more := numbered(0, false, 1, 9, 3), numbered(0, false, 1, 9, 3, 4)
	fresh := numbered(services, false, 1, 2, 3)
	change(far, replaced)
	change(near, numbered(1, true, 1, 9, 3))
	change(replaced, more)
	change(more, numbered(0, false, 1, 3, 4))
	change(nil, fresh)
	change(fresh, nil)
	return all
}
