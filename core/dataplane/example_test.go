// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
	"github.com/tandem-proxy/tandem/core/test/table"
)

// A port is programmed, then one of its endpoints is replaced. A sync writes what
// differs, and a second one nothing.
func Example() {
	endpoint := func(at string) model.Endpoint { return model.Endpoint{Addr: netip.MustParseAddrPort(at)} }
	port := func(endpoints ...model.Endpoint) *model.Port {
		act := model.Action{Verdict: model.Balance, Pool: &model.Pool{Endpoints: endpoints}}
		return &model.Port{ID: model.PortID{Proto: model.TCP}, Frontends: []model.Frontend{{At: netip.MustParseAddrPort("10.96.0.10:80"), On: [model.Origins]model.Action{act, act, act}}}}
	}

	ctx := context.Background()
	driver := memory.New[table.Key](table.Compiler{}.Equal, dataplane.Limits{Atomic: true})
	backend := dataplane.New(table.Compiler{}, driver)
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
		fmt.Print(table.Text(driver.Objects))
	}
	first := port(endpoint("10.244.1.2:8080"), endpoint("10.244.2.2:8080"))
	second := port(endpoint("10.244.1.2:8080"), endpoint("10.244.2.7:8080"))
	sync(model.Delta{New: first})
	sync(model.Delta{Old: first, New: second})
	sync()
	// Output:
	// 5 ops in 1 commits, error: <nil>
	// other addresses of []: drop
	// other ports of 10.96.0.10: reject
	// tcp 10.96.0.10:80 from host: balance 10.244.1.2:8080 10.244.2.2:8080
	// tcp 10.96.0.10:80 from outside: balance 10.244.1.2:8080 10.244.2.2:8080
	// tcp 10.96.0.10:80 from pod: balance 10.244.1.2:8080 10.244.2.2:8080
	// 3 ops in 1 commits, error: <nil>
	// other addresses of []: drop
	// other ports of 10.96.0.10: reject
	// tcp 10.96.0.10:80 from host: balance 10.244.1.2:8080 10.244.2.7:8080
	// tcp 10.96.0.10:80 from outside: balance 10.244.1.2:8080 10.244.2.7:8080
	// tcp 10.96.0.10:80 from pod: balance 10.244.1.2:8080 10.244.2.7:8080
	// 0 ops in 0 commits, error: <nil>
	// other addresses of []: drop
	// other ports of 10.96.0.10: reject
	// tcp 10.96.0.10:80 from host: balance 10.244.1.2:8080 10.244.2.7:8080
	// tcp 10.96.0.10:80 from outside: balance 10.244.1.2:8080 10.244.2.7:8080
	// tcp 10.96.0.10:80 from pod: balance 10.244.1.2:8080 10.244.2.7:8080
}
