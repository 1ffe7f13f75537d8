// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/track"
)

// Counts of a frontend are added up, given to its Service, and compared with those of
// a moment before.
func TestTop(t *testing.T) {
	at := netip.MustParseAddrPort
	service := func(name string, fronts ...model.Frontend) *track.View {
		n := model.ServiceName{Namespace: "ns", Name: name}
		return &track.View{Object: &model.Service{Name: n}, Ports: []*model.Port{{ID: model.PortID{Service: n, Proto: model.TCP}, Frontends: fronts}}}
	}
	services := []*track.View{
		service("calm", model.Frontend{At: at("10.96.0.1:80")}),
		service("busy", model.Frontend{At: at("10.96.0.2:80")}, model.Frontend{Kind: model.KindNodePort, At: at("0.0.0.0:30080")}),
	}
	look := func(second int64, counts ...dataplane.Connections) question.Top {
		all := question.TopCounts{}
		for _, c := range counts {
			all.Add(c)
		}
		return question.TopOf(question.TopSources{Mode: "nftables", At: time.Unix(second, 0), Counts: all, Frontends: true}, services, question.Filter{})
	}
	before := look(1, dataplane.Connections{Proto: model.TCP, At: at("10.96.0.1:80"), New: 1000})
	now := look(3,
		dataplane.Connections{Proto: model.TCP, At: at("10.96.0.1:80"), New: 1010},
		dataplane.Connections{Proto: model.TCP, At: at("10.96.0.2:80"), New: 30},
		dataplane.Connections{Proto: model.TCP, At: at("10.96.0.2:80"), New: 10}, // from another origin
		dataplane.Connections{Proto: model.TCP, At: at("0.0.0.0:30080"), New: 10},
		dataplane.Connections{Proto: model.UDP, At: at("10.96.0.1:80"), New: 7}, // of no Service
	)
	if now.Services[0].Service != "ns/calm" {
		t.Errorf("without a rate the largest count is not first: %+v", now.Services)
	}
	now.Since(before)
	busy, calm := now.Services[0], now.Services[1]
	if busy.Service != "ns/busy" || busy.New != 50 || busy.PerSecond != 25 || calm.PerSecond != 5 || busy.Frontends[1].Address != "*:30080" || busy.Frontends[1].New != 10 {
		t.Errorf("%+v", now.Services)
	}
	byPort := look(4, dataplane.Connections{Proto: model.TCP, Port: services[1].Ports[0].ID, New: 5})
	if s := byPort.Services; len(s) != 1 || s[0].Service != "ns/busy" || s[0].New != 5 || len(s[0].Frontends) > 0 {
		t.Errorf("counts of a port: %+v", s)
	}
	again := look(4, dataplane.Connections{Proto: model.TCP, At: at("10.96.0.1:80"), New: 3})
	again.Since(now)
	for _, s := range again.Services {
		if s.PerSecond != 0 {
			t.Errorf("a count that began again has a rate: %+v", s)
		}
	}
}

// Endpoints are counted by Service whatever the frontend, and connections of conntrack by
// the addresses that clients asked for; a node port's is any of the node's.
func TestTopEndpointsAndBytes(t *testing.T) {
	at := netip.MustParseAddrPort
	n := model.ServiceName{Namespace: "ns", Name: "busy"}
	services := []*track.View{{Object: &model.Service{Name: n}, Ports: []*model.Port{{
		ID:        model.PortID{Service: n, Proto: model.TCP},
		Frontends: []model.Frontend{{At: at("10.96.0.2:80")}, {Kind: model.KindNodePort, At: at("0.0.0.0:30080")}},
	}}}}
	look := func(second int64, bytes uint64) question.Top {
		endpoints, flows := question.TopEndpoints{}, question.TopFlows{}
		for _, c := range []dataplane.Connections{
			{Proto: model.TCP, At: at("10.96.0.2:80"), Endpoint: at("10.244.1.2:8080"), New: 3},
			{Proto: model.TCP, At: at("0.0.0.0:30080"), Endpoint: at("10.244.1.2:8080"), New: 4},
			{Proto: model.TCP, At: at("10.96.0.2:80"), Endpoint: at("10.244.1.3:8080"), New: 9},
			{Proto: model.TCP, At: at("10.96.0.9:80"), Endpoint: at("10.244.1.3:8080"), New: 50}, // of no Service
		} {
			endpoints.Add(c)
		}
		flows.Add(model.TCP, at("10.96.0.2:80"), at("10.244.1.3:8080"), bytes)
		flows.Add(model.TCP, at("192.0.2.1:30080"), at("10.244.1.3:8080"), 10)
		flows.Add(model.TCP, at("192.0.2.2:30080"), at("10.244.1.3:8080"), 10) // another machine's
		flows.Add(model.UDP, at("10.96.0.2:80"), at("10.244.1.3:8080"), 10)
		return question.TopOf(question.TopSources{
			Mode: "nftables", At: time.Unix(second, 0), Endpoints: endpoints, Flows: flows, Node: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		}, services, question.Filter{})
	}
	before, now := look(1, 100), look(3, 500)
	now.Since(before)
	s := now.Services[0]
	if e := s.Endpoints; len(e) != 2 || e[0].Address != "10.244.1.3:8080" || e[0].Proto != "tcp" || e[0].New != 9 || e[1].New != 7 || e[1].Traffic != nil {
		t.Errorf("%+v", s.Endpoints)
	} else if *e[0].Traffic != *s.Traffic {
		t.Errorf("%+v", e[0].Traffic)
	}
	if *s.Traffic != (question.TopTraffic{Connections: 2, Bytes: 510, PerSecond: 200}) {
		t.Errorf("%+v", s.Traffic)
	}
	less := look(5, 1)
	less.Since(now)
	if less.Services[0].Traffic.PerSecond != 0 {
		t.Errorf("connections that ended have a rate: %+v", less.Services[0].Traffic)
	}
}

// Where the data plane counts nothing, open connections are shown by Service and by endpoint, those of most bytes a
// second first; one that nothing has translated is no endpoint's.
func TestTopOfOpenConnections(t *testing.T) {
	at := netip.MustParseAddrPort
	var services []*track.View
	for i, name := range []string{"idle", "few", "many"} {
		n := model.ServiceName{Namespace: "ns", Name: name}
		services = append(services, &track.View{Object: &model.Service{Name: n}, Ports: []*model.Port{{
			ID: model.PortID{Service: n, Proto: model.TCP}, Frontends: []model.Frontend{{At: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80)}},
		}}})
	}
	look := func(second int64, bytes uint64) question.Top {
		flows := question.TopFlows{}
		flows.Add(model.TCP, at("10.96.0.1:80"), at("10.244.1.1:8080"), bytes)
		flows.Add(model.TCP, at("10.96.0.2:80"), at("10.244.1.2:8080"), 50)
		flows.Add(model.TCP, at("10.96.0.2:80"), at("10.244.1.3:8080"), 50)
		flows.Add(model.TCP, at("10.96.0.2:80"), at("10.96.0.2:80"), 50)
		return question.TopOf(question.TopSources{Mode: "nftables", At: time.Unix(second, 0), Flows: flows, Endpoints: question.TopEndpoints{}}, services, question.Filter{})
	}
	before := look(1, 100)
	if !before.Tracked || before.NotCounted == "" || len(before.Services) != 2 || before.Services[0].Service != "ns/many" || len(before.Services[0].Endpoints) != 2 || before.Services[0].Traffic.Connections != 3 {
		t.Errorf("%+v", before)
	}
	now := look(3, 500)
	now.Since(before)
	if s := now.Services[0]; s.Service != "ns/few" || s.Traffic.PerSecond != 200 || s.Endpoints[0].Traffic.PerSecond != 200 {
		t.Errorf("%+v", now.Services)
	}
}

// What nodes answer cannot fill the memory of who adds it up: what is beyond is counted, and a Service that is there
// already is added up nevertheless.
func TestTopSumIsBounded(t *testing.T) {
	var s question.TopSum
	long := strings.Repeat("x", 40<<20)
	s.Add("a", "tandem-a", &question.Top{Services: []question.TopService{{Service: "ns/web", New: 1}, {Service: long + "1"}, {Service: long + "2", Endpoints: []question.TopAddress{{New: 1}}}}})
	s.Add("b", "tandem-b", &question.Top{Services: []question.TopService{{Service: "ns/web", New: 2, Endpoints: []question.TopAddress{{Address: long, New: 1}}}}})
	all := s.Result()
	if len(all.Services) != 2 || all.Services[0].Service != "ns/web" || all.Services[0].New != 3 || len(all.Services[0].Endpoints) > 0 || all.Unlisted != 2 {
		t.Errorf("%d Services, %d unlisted: %+v", len(all.Services), all.Unlisted, all.Services[0])
	}
}
