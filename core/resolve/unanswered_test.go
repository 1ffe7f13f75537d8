// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// UDP flows to endpoints that are passed over are stale: they are not in Draining.
func TestPassedOverKeepNoFlows(t *testing.T) {
	svc := service()
	svc.Ports[0].Proto = model.UDP
	from := slice("s", "10.0.0.1@there", "10.0.0.2@there/silent", "10.0.0.3@there/silent", "10.0.0.4@there/terminating")
	from.Ports[0].Proto = model.UDP
	port := resolve.Service(host(), svc, []*model.Slice{from}).Ports[0]
	if want := at("10.0.0.4:8080"); len(port.Draining) != 1 || port.Draining[0] != want {
		t.Errorf("draining %v, want %v: one of the silent is in the pool, the other passed over", port.Draining, want)
	}
}

func TestMarkUnanswered(t *testing.T) {
	a, b := slice("a", "10.0.0.1@there", "10.0.0.2@there"), slice("b", "10.0.0.3@there")
	from := []*model.Slice{a, b}
	if got := resolve.MarkUnanswered(from, nil); &got[0] != &from[0] {
		t.Error("copied without suspects")
	}
	if got := resolve.MarkUnanswered(from, model.Suspects{addr("10.0.0.9"): {}}); &got[0] != &from[0] {
		t.Error("copied without need")
	}
	before := slices.Clone(a.Endpoints)
	got := resolve.MarkUnanswered(from, model.Suspects{addr("10.0.0.2"): {}})
	if !slices.Equal(a.Endpoints, before) || from[0] != a {
		t.Error("the source's slice has changed")
	}
	if got[1] != b || got[0].Endpoints[0].State.Has(model.Unanswered) || !got[0].Endpoints[1].State.Has(model.Unanswered) {
		t.Errorf("marked %+v", got[0].Endpoints)
	}
}
