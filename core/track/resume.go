// SPDX-License-Identifier: Apache-2.0

package track

import (
	"runtime"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Resume returns a Tracker with the state that another one has resolved for a host: all are its Services, in
// has its routes, grants, Orphans and OtherNodes. Flush resolves only what is set afterwards. It is for questions of what an edit
// would change, and costs the claims of all Services.
func Resume(host *model.Host, all []*View, in *model.Objects, suspects model.Suspects, now time.Time) *Tracker {
	t := New()
	t.services = make(map[model.ServiceName]*service, len(all))
	t.slices.putOff(len(all))
	t.claims.expect(len(all))
	t.list, t.lists = make([]*View, 0, len(all)), 1 // the other Tracker has the Views, too
	t.SetClock(func() time.Time { return now })
	t.configured, t.host, t.suspects = host, host, suspects
	t.Set(&model.Objects{Slices: in.Slices, Nodes: in.Nodes})
	for i := range all {
		if all[i].Object.Name == resolve.APIService {
			t.host = resolve.WithAPIServers(host, all[i].Slices)
		}
	}
	for i, v := range all {
		if i%stretch == 0 {
			runtime.Gosched()
		}
		s := &service{name: v.Object.Name, View: v, place: uint32(len(t.list))}
		t.services[s.name], t.list = s, append(t.list, v)
		for _, slice := range s.Slices {
			t.slices.set(slice)
		}
		if s.Queued {
			t.change(s).Queued = false
		}
		t.updateClaims(s)
	}
	t.decideClaims()
	t.Set(&model.Objects{Routes: in.Routes, Grants: in.Grants})
	for _, s := range slices.Concat(t.dirty, t.entailed) { // by claims that were resolved before
		s.dirty, s.entailed = false, false
		t.change(s).Queued = false
	}
	t.dirty, t.entailed = nil, nil
	return t
}
