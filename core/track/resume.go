// SPDX-License-Identifier: Apache-2.0

package track

import (
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Resume returns a Tracker with the state that another one has resolved for a host, given by
// its Services and by the routes and grants of in: of what is set in it, Flush resolves that alone. It is for questions
// of what an edit would change, and costs the claims of all Services.
func Resume(host *model.Host, all []View, in *model.Objects, suspects model.Suspects, now time.Time) *Tracker {
	t := New()
	t.services, t.slices = make(map[model.ServiceName]*service, len(all)), make(map[model.SliceName]*service, len(all))
	t.claims.holder = make(map[claim]*service, 2*len(all)) // most have a cluster IP and a port
	t.SetClock(func() time.Time { return now })
	t.configured, t.host, t.suspects = host, host, suspects
	for i := range all {
		if all[i].Object.Name == resolve.APIService {
			t.host = resolve.WithAPIServers(host, all[i].Slices)
		}
	}
	for _, v := range all {
		s := t.get(v.Object.Name)
		s.object, s.slices, s.ports, s.problems, s.ready = v.Object, v.Slices, v.Ports, v.Problems, v.Ready
		s.shared = true
		for _, slice := range s.slices {
			t.slices[slice.Name] = s
		}
		t.objects++
		t.updateClaims(s)
	}
	t.Set(&model.Objects{Routes: in.Routes, Grants: in.Grants})
	for _, s := range t.dirty { // by claims that were resolved before
		s.queued = false
	}
	t.dirty = nil
	return t
}
