// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// UDP flows to ejected endpoints are stale: they are not in Draining.
func TestPassedOverKeepNoFlows(t *testing.T) {
	svc := service()
	svc.Ports[0].Proto = model.UDP
	from := slice("s", "10.0.0.1@there", "10.0.0.2@there/silent", "10.0.0.3@there/silent", "10.0.0.4@there/terminating")
	from.Ports[0].Proto = model.UDP
	port := resolve.Service(host(), svc, []*model.Slice{from}).Ports[0]
	if want := at("10.0.0.4:8080"); len(port.Draining) != 1 || port.Draining[0] != want {
		t.Errorf("draining %v, want %v: one of the silent is in the pool, the other ejected", port.Draining, want)
	}
}

// Whatever endpoints are silent, at most half of a pool is ejected, never its last endpoint, none of
// this node, and none that answers.
func TestAtMostHalfIsPassedOver(t *testing.T) {
	for n := 1; n <= 7; n++ {
		for silent := range 1 << n { // bits
			var words []string
			for i := range n {
				node := "there"
				if i == 0 {
					node = "here"
				}
				word := fmt.Sprintf("10.0.0.%d@%s", i+1, node)
				if silent>>i&1 == 1 {
					word += "/silent"
				}
				words = append(words, word)
			}
			pool := resolve.Service(host(), service(), []*model.Slice{slice("s", words...)}).Ports[0].Frontends[0].On[model.FromPod].Pool
			want := n - min(bits.OnesCount(uint(silent&^1)), n/2)
			if len(pool.Endpoints) != want || want < 1 {
				t.Fatalf("%v: %d endpoints used, want %d", words, len(pool.Endpoints), want)
			}
			for i := range n {
				in := slices.ContainsFunc(pool.Endpoints, func(e model.Endpoint) bool { return e.Addr == at(fmt.Sprintf("10.0.0.%d:8080", i+1)) })
				if answers := i == 0 || silent>>i&1 == 0; answers && !in {
					t.Fatalf("%v: the one with number %d is not used", words, i+1)
				}
			}
		}
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
