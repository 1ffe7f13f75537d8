// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// What a change of a tenant entails for many of its large Services at once is shared among turns like what it
// writes: another namespace's change waits for no more than one turn has room for.
func TestWhatATenantsChangeEntailsDelaysNoOther(t *testing.T) {
	const services, each = 1000, 300
	for _, c := range []struct {
		name   string
		all    []model.SliceEndpoint // of each Service
		choice model.Choice          // of each
		routes int                   // that have "backend" as a backend, one Service each
		begin  func(b *bench)        // long before
		entail func(b *bench)        // as the victim changes
	}{
		{
			name: "an endpoint that all of them have stops answering", all: readyEndpoints(each),
			entail: func(b *bench) { b.SetSuspects(model.Suspects{readyEndpoints(1)[0].Addr: {}}) },
		},
		{
			name: "new endpoints of all of them get their next share", all: readyEndpoints(each), choice: model.Choice{SlowStart: time.Minute},
			begin: func(b *bench) {
				for i := range services {
					b.Set(endpoints("tenant", fmt.Sprint("s", i), readyEndpoints(each+1)))
				}
			},
			entail: func(*bench) { time.Sleep(10 * time.Second) },
		},
		{
			name: "a backend of routes changes", all: readyEndpoints(1), routes: resolve.MaxRoutesOf,
			entail: func(b *bench) { b.Set(endpoints("tenant", "backend", readyEndpoints(3000)[1:])) },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, nil)
				for i := range services {
					s := in("tenant", service(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", 1+i/250, i%250)))
					s.Choice = c.choice
					b.Set(s)
					b.Set(endpoints("tenant", fmt.Sprint("s", i), c.all))
				}
				b.Set(in("tenant", service("backend", "10.96.100.1")))
				b.Set(endpoints("tenant", "backend", readyEndpoints(3000)))
				for i := range c.routes {
					b.Set(&model.Route{
						Name:     model.RouteName{Proto: model.TCP, Namespace: "tenant", Name: fmt.Sprint("r", i)},
						Parents:  []model.RouteParent{{Service: fmt.Sprint("s", 2*i)}, {Service: fmt.Sprint("s", 2*i+1)}},
						Backends: []model.RouteBackend{{Service: model.ServiceName{Namespace: "tenant", Name: "backend"}, Port: 80, Weight: 1}},
					})
				}
				b.Set(in("victim", service("v", "10.96.0.1")))
				b.Set(endpoints("victim", "v", readyEndpoints(1)))
				b.Synced(true)
				synctest.Wait()
				if c.begin != nil {
					c.begin(b)
					synctest.Wait()
				}
				b.syncs = nil
				b.atOnce(t, func() {
					c.entail(b)
					b.Set(endpoints("victim", "v", readyEndpoints(2)))
				})
				synctest.Wait()
				most, all := 0, 0
				for _, s := range b.syncs {
					entries := 0
					for _, d := range s.Applied {
						entries += len(d.New.Pools()[0].Endpoints)
					}
					most, all = max(most, entries), all+entries
				}
				t.Logf("%d entries in %d syncs, %d in the largest", all, len(b.syncs), most)
				if all < resolve.MaxEntries {
					t.Errorf("%d entries are too few to show anything", all)
				}
				if most > resolve.MaxEntries+each+2 {
					t.Errorf("a sync has %d entries, want no more than a turn's %d", most, resolve.MaxEntries)
				}
			})
		})
	}
}
