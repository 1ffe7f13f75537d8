// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/dataplane/memory"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// counting counts the objects that a compiler emits for ports.
type counting struct {
	*Compiler
	emitted int
}

func (c *counting) Port(h *model.Host, p *model.Port, emit func(nft.Key, nft.Value)) []model.Gap {
	return c.Compiler.Port(h, p, func(k nft.Key, v nft.Value) {
		c.emitted++
		emit(k, v)
	})
}

// cost is the work for one change, from the tracker to the kernel.
type cost struct {
	Resolved, Deltas uint64
	Compiled         int // objects
	Commits, Ops     int
}

// TestCostFollowsChange holds that a change costs the same work whatever the
// size of the cluster. It counts; it does not measure time.
func TestCostFollowsChange(t *testing.T) {
	small, large := costs(t, 100), costs(t, 10000)
	for i, name := range []string{"endpoint replaced", "endpoint added", "endpoint removed", "Service added", "Service deleted"} {
		if small[i] != large[i] {
			t.Errorf("%s: %+v at 100 Services, %+v at 10,000", name, small[i], large[i])
		}
		if c := large[i]; c.Resolved > 1 || c.Deltas != 1 || c.Commits > 1 {
			t.Errorf("%s: %+v", name, c)
		}
		t.Logf("%s: %+v", name, large[i])
	}
	if ops := large[0].Ops; ops != 1 {
		t.Errorf("replacing an endpoint took %d ops, want 1", ops)
	}
}

func costs(t *testing.T, services int) (all []cost) {
	compiler := &counting{Compiler: NewCompiler(Options{})}
	kernel := memory.New[nft.Key](compiler.Equal, dataplane.Limits{Atomic: true})
	kernel.Fail = func(nft.Op) error { return nil }
	b := dataplane.New(compiler, kernel)
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	tr := track.New()
	host := &model.Host{Name: "here"}
	tr.SetHost(host)
	b.SetHost(host)
	service := func(i int) *model.Service {
		return &model.Service{
			Name: model.ServiceName{Namespace: "ns", Name: fmt.Sprint("s", i)}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
		}
	}
	slice := func(i int, endpoints ...byte) *model.Slice {
		name := fmt.Sprint("s", i)
		s := &model.Slice{Name: model.SliceName{Namespace: "ns", Name: name}, Service: name, Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}}
		for _, e := range endpoints {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, e}), Node: "there", State: model.Ready | model.Serving})
		}
		return s
	}
	step := func() cost {
		before, emitted, commits, ops := tr.Stats(), compiler.emitted, kernel.Commits, kernel.Ops
		b.Update(tr.Flush())
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := tr.Stats()
		return cost{after.Resolved - before.Resolved, after.Deltas - before.Deltas, compiler.emitted - emitted, kernel.Commits - commits, kernel.Ops - ops}
	}
	for i := range services {
		tr.SetService(service(i))
		tr.SetSlice(slice(i, 1, 2, 3))
	}
	tr.SetSlice(slice(9, 1, 2, 3, 4)) // so that all pick chains that follow are there
	step()
	for _, change := range []func(){
		func() { tr.SetSlice(slice(5, 1, 2, 9)) },
		func() { tr.SetSlice(slice(5, 1, 2, 9, 4)) },
		func() { tr.SetSlice(slice(5, 1, 2, 4)) },
		func() {
			tr.SetSlice(slice(services, 1, 2, 3))
			tr.SetService(service(services))
		},
		func() { tr.DeleteService(service(services).Name) },
	} {
		change()
		all = append(all, step())
	}
	return all
}
