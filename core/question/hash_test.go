// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/track"
)

func known() *track.View {
	addr := netip.MustParseAddr
	return &track.View{
		Object: &model.Service{
			Name: model.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: []netip.Addr{addr("10.96.0.1")}, Version: 7,
			ExternalIPs: []netip.Addr{addr("192.0.2.1"), addr("192.0.2.2")}, Ports: []model.ServicePort{{Name: "http", Proto: model.TCP, Port: 80}},
		},
		Slices: []*model.Slice{{Name: model.SliceName{Namespace: "ns", Name: "web-1"}, Service: "web", Endpoints: []model.SliceEndpoint{{Addr: addr("10.0.0.1"), Node: "a", State: model.Ready}}}},
	}
}

// Nodes that know the same of a Service have the same hash, whatever they make of it;
// those that know something else have another.
func TestHashIsOfWhatAllNodesKnow(t *testing.T) {
	want := question.ServiceHash(known())
	if want != "0887d1b122418a30" {
		t.Errorf("hash %s: nodes of another version would seem to differ", want)
	}
	for name, change := range map[string]func(*track.View){
		"another version":      func(s *track.View) { s.Object.Version, s.Slices[0].Version = 9, 9 },
		"another order":        func(s *track.View) { slices.Reverse(s.Object.ExternalIPs) },
		"what this node makes": func(s *track.View) { s.Ports = []*model.Port{{}} },
	} {
		s := known()
		if change(s); question.ServiceHash(s) != want {
			t.Errorf("%s has another hash", name)
		}
	}
	for name, change := range map[string]func(*track.View){
		"an endpoint terminates": func(s *track.View) { s.Slices[0].Endpoints[0].State = model.Serving | model.Terminating },
		"an endpoint moved":      func(s *track.View) { s.Slices[0].Endpoints[0].Node = "b" },
		"an endpoint is gone":    func(s *track.View) { s.Slices[0].Endpoints = nil },
		"hints":                  func(s *track.View) { s.Slices[0].Endpoints[0].Hints = &model.Hints{} },
		"another policy":         func(s *track.View) { s.Object.External = model.Local },
		"source ranges":          func(s *track.View) { s.Object.Restricted = true },
		"another port":           func(s *track.View) { s.Object.Ports[0].Port = 81 },
	} {
		s := known()
		if change(s); question.ServiceHash(s) == want {
			t.Errorf("%s, and the hash is the same", name)
		}
	}
}
