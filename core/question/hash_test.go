// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/test/fields"
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

// A field that a hash forgets lets nodes that differ in it seem alike.
func TestHashesSeeEveryField(t *testing.T) {
	t.Run("Service", func(t *testing.T) {
		fields.Seen(t, func(a, b *model.Service) bool {
			return question.ServiceHash(&track.View{Object: a}) == question.ServiceHash(&track.View{Object: b})
		}, "Created", "Version", "Where")
	})
	t.Run("EndpointSlice", func(t *testing.T) {
		hash := func(s *model.Slice) string {
			return question.ServiceHash(&track.View{Object: known().Object, Slices: []*model.Slice{s}})
		}
		fields.Seen(t, func(a, b *model.Slice) bool { return hash(a) == hash(b) },
			"Service",        // that of the view
			"Endpoints.Warm", // since when this node knows it
			"Pods",           // for people; nodes of two versions are compared
			"Triggered", "Version", "Where")
	})
	t.Run("host", func(t *testing.T) {
		fields.Seen(t, func(a, b *model.Host) bool { return question.PortsHash(a, nil) == question.PortsHash(b, nil) },
			"Guard.Listeners") // the ports are resolved
	})
	t.Run("port", func(t *testing.T) {
		hash := func(p *model.Port) string { return question.PortsHash(nil, []*model.Port{p}) }
		fields.Seen(t, func(a, b *model.Port) bool { return hash(a) == hash(b) })
	})
}
