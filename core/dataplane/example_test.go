// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// table is the compiler of a made-up kernel that has a table of frontends: the key
// is a frontend, the value lists its endpoints.
type table struct {
	dataplane.SimpleCompiler[string, string]
}

func (table) Base(*model.Host, func(string, string)) {}

func (table) Port(_ *model.Host, p *model.Port, emit func(string, string)) []model.Gap {
	for _, f := range p.Frontends {
		if act := f.On[model.FromPod]; act.Verdict == model.Balance {
			var at []netip.AddrPort
			for _, e := range act.Pool.Endpoints {
				at = append(at, e.Addr)
			}
			emit(f.At.String(), fmt.Sprint(at))
		}
	}
	return nil
}

func (table) Rank(string) int        { return 0 }
func (table) Equal(a, b string) bool { return a == b }

// A port is programmed, then one of its endpoints is replaced. A sync writes what
// differs, and a second one nothing.
func Example() {
	endpoint := func(at string) model.Endpoint { return model.Endpoint{Addr: netip.MustParseAddrPort(at)} }
	port := func(endpoints ...model.Endpoint) *model.Port {
		act := model.Action{Verdict: model.Balance, Pool: &model.Pool{Endpoints: endpoints}}
		return &model.Port{Frontends: []model.Frontend{{At: netip.MustParseAddrPort("10.96.0.10:80"), On: [model.Origins]model.Action{act, act, act}}}}
	}

	ctx := context.Background()
	driver := memory.New[string](table{}.Equal, dataplane.Limits{Atomic: true})
	backend := dataplane.New(table{}, driver)
	defer backend.Close()
	if err := backend.Adopt(ctx); err != nil { // reads back what is installed: nothing
		fmt.Println(err)
		return
	}
	backend.SetHost(&model.Host{Name: "node-1"})

	sync := func(deltas ...model.Delta) {
		backend.Update(deltas)
		work, err := backend.Sync(ctx)
		fmt.Printf("%d ops in %d commits, error: %v\n", work.Ops, work.Commits, err)
		for _, k := range slices.Sorted(maps.Keys(driver.Objects)) {
			fmt.Printf("  %s %s\n", k, driver.Objects[k])
		}
	}
	first := port(endpoint("10.244.1.2:8080"), endpoint("10.244.2.2:8080"))
	second := port(endpoint("10.244.1.2:8080"), endpoint("10.244.2.7:8080"))
	sync(model.Delta{New: first})
	sync(model.Delta{Old: first, New: second})
	sync()
	// Output:
	// 1 ops in 1 commits, error: <nil>
	//   10.96.0.10:80 [10.244.1.2:8080 10.244.2.2:8080]
	// 1 ops in 1 commits, error: <nil>
	//   10.96.0.10:80 [10.244.1.2:8080 10.244.2.7:8080]
	// 0 ops in 0 commits, error: <nil>
	//   10.96.0.10:80 [10.244.1.2:8080 10.244.2.7:8080]
}
