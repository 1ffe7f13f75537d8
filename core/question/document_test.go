// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/track"
)

func snapshot() *engine.Snapshot {
	id := func(n string) model.PortID {
		return model.PortID{Service: model.ServiceName{Namespace: "ns", Name: n}, Name: "http", Proto: model.TCP}
	}
	service := func(n string, problems ...model.Problem) *track.View {
		act := model.Action{Pool: &model.Pool{Endpoints: make([]model.Endpoint, 2)}}
		return &track.View{
			Object:   &model.Service{Name: model.ServiceName{Namespace: "ns", Name: n}},
			Ports:    []*model.Port{{ID: id(n), Frontends: []model.Frontend{{Kind: model.KindNodePort, At: netip.MustParseAddrPort("0.0.0.0:30080"), On: [model.Origins]model.Action{act, act, act}}}}},
			Problems: problems,
		}
	}
	return &engine.Snapshot{
		Status: engine.Status{Adopted: true, SourceSynced: true, Synced: true, SyncedAt: time.Unix(1, 0)},
		Services: []*track.View{
			service("good"),
			service("partial", model.Problem{Object: "Service ns/partial", Where: "a.yaml:3", Why: model.WhyFrontendTaken, Detail: "node port 30080"}),
			service("failing"),
			service("deferred"),
			service("gap"),
			service("hidden"), service("hidden too"),
		},
		Backend: dataplane.Health{
			Failures: map[model.PortID]error{id("failing"): errors.New("no space"), id("deferred"): ledger.ErrDeferred, {}: errors.New("shared chain refused")},
			Gaps: map[model.PortID][]model.Gap{
				id("gap"):        {{Detail: "no affinity here"}},
				id("hidden"):     {{Detail: "no client addresses", Source: true}},
				id("hidden too"): {{Detail: "no client addresses", Source: true}},
			},
		},
		Problems: []model.Problem{{Object: "HNS", Why: model.WhyDegraded, Detail: "load balancers are degraded"}, {Object: "Service ns/bad\x1b[31m\nforged", Where: "b.yaml:7", Why: model.WhyInvalid, Detail: "spec.prots: unknown field"}},
	}
}

func TestDocument(t *testing.T) {
	d := question.Of(question.Facts{Offload: true, Version: "v1", Node: "n", Mode: "nftables", Health: question.Health{Synced: true}}, question.Filter{}, snapshot())
	var states []string
	for _, s := range d.Services {
		states = append(states, s.Name+"="+s.State)
	}
	if got := strings.Join(states, " "); got != "ns/good=Programmed ns/partial=Partial ns/failing=Failing ns/deferred=Pending ns/gap=Partial ns/hidden=Programmed ns/hidden too=Programmed" {
		t.Errorf("states: %s", got)
	}
	if !d.Healthy || d.Services[0].Frontends[0].Address != "*:30080" || d.Services[0].Frontends[0].Endpoints != 2 {
		t.Errorf("%+v", d.Services[0])
	}
	if !d.Running().Offload {
		t.Error("flow offload is not reported")
	}
	text, err := json.Marshal(d)
	if err != nil || !strings.Contains(string(text), `"state":"Failing"`) {
		t.Errorf("%v: %s", err, text)
	}
}

// What a source has rejected of a Service makes it Partial, and is listed with it alone.
func TestARejectedFieldIsTheServices(t *testing.T) {
	in := snapshot()
	in.Problems = append(in.Problems, model.Problem{Object: "Service ns/good", Where: "shop.yaml:24", Why: model.WhyBadAddress, Detail: "spec.externalIPs[0]: 127.0.0.1"})
	d := question.Of(question.Facts{}, question.Filter{}, in)
	if good := d.Services[0]; good.Name != "ns/good" || good.State != "Partial" || len(good.Problems) != 1 || good.Problems[0].Where != "shop.yaml:24" {
		t.Errorf("%+v", good)
	}
	for _, p := range d.Problems {
		if p.Where == "shop.yaml:24" {
			t.Errorf("listed twice: %+v", p)
		}
	}
	if !slices.ContainsFunc(d.Problems, func(p question.Problem) bool { return p.Where == "b.yaml:7" }) {
		t.Errorf("the problem of a Service that is not there is lost: %+v", d.Problems)
	}
	in.Problems = append(in.Problems[:len(in.Problems)-1], model.Problem{
		Object: "EndpointSlice ns/x", Where: "shop.yaml:44", Why: model.WhyBadAddress, Detail: "endpoints[0]", Of: model.ServiceName{Namespace: "ns", Name: "good"},
	})
	if good := question.Of(question.Facts{}, question.Filter{}, in).Services[0]; good.State != "Partial" || len(good.Problems) != 1 || good.Problems[0].Object != "EndpointSlice ns/x" {
		t.Errorf("of a slice: %+v", good)
	}
	track.SortServices(in.Services)
	one, ok := question.ServiceOf(in, model.ServiceName{Namespace: "ns", Name: "good"}, nil)
	if !ok {
		t.Fatal("not found")
	}
	if s := one.Services[0]; s.State != "Partial" || len(s.Problems) != 1 {
		t.Errorf("%+v", s)
	}
}

// A filter of states leaves the problems of no single Service, one of names does not; the same of what was recorded.
func TestProblemsOfAFilter(t *testing.T) {
	live := &question.Document{Snapshot: snapshot()}
	whole := question.StatusOf(live, question.Filter{})
	recorded := &question.Document{Snapshot: live.Snapshot, Recorded: &question.Recorded{Status: whole}}
	for name, d := range map[string]*question.Document{"live": live, "recorded": recorded} {
		for _, only := range []question.Filter{question.Short(), {States: []string{"nothing"}}, {Name: "good"}, {Namespace: "ns"}} {
			want := 0
			if only.Wide() {
				want = len(whole.Problems)
			}
			s := question.StatusOf(d, only)
			if len(s.Problems) != want || s.Total != len(whole.Services) || slices.ContainsFunc(s.Services, func(s question.Service) bool { return !only.Match(s.Name, s.State) }) {
				t.Errorf("%s, %+v: %d problems, want %d; %d of %d Services", name, only, len(s.Problems), want, len(s.Services), s.Total)
			}
		}
	}
	if len(whole.Problems) == 0 {
		t.Error("there are no problems")
	}
}

// What the whole mode lacks is said once, however many Services there are.
func TestGapsOfTheMode(t *testing.T) {
	in := snapshot()
	for id := range in.Backend.Gaps {
		in.Backend.Gaps[id] = append(in.Backend.Gaps[id], model.Gap{Failover: true, Detail: "no endpoint is ejected"})
	}
	var said []string
	for _, p := range question.Of(question.Facts{}, question.Filter{}, in).Problems {
		if p.Object == "data plane" && p.Reason == model.WhyUnsupported.String() {
			said = append(said, p.Detail)
		}
	}
	if got := strings.Join(said, "; "); got != "no client addresses; no endpoint is ejected" {
		t.Errorf("said: %s", got)
	}
}

// An ejected endpoint is in the list of its Service, with the reason, and explain
// states why it gets no connection.
func TestPassedOverEndpointIsListed(t *testing.T) {
	name := model.ServiceName{Namespace: "ns", Name: "web"}
	slice := &model.Slice{Name: model.SliceName{Namespace: "ns", Name: "web-1"}, Service: name.Name, Ports: []model.SlicePort{{Name: "http", Proto: model.TCP, Port: 8080}}}
	for _, ip := range []string{"10.0.2.1", "10.0.3.1", "10.0.4.1"} {
		slice.Endpoints = append(slice.Endpoints, model.SliceEndpoint{Addr: netip.MustParseAddr(ip), Node: "node-" + ip[5:6], State: model.Ready | model.Serving})
	}
	tracker := track.New()
	tracker.SetHost(&model.Host{Name: "node-1"})
	tracker.Set(&model.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Name: "http", Proto: model.TCP, Port: 80}}})
	tracker.Set(slice)
	tracker.SetSuspects(model.Suspects{netip.MustParseAddr("10.0.3.1"): {}})
	tracker.Flush()
	in := &engine.Snapshot{Host: &model.Host{Name: "node-1"}, Suspects: tracker.Suspects(), Services: tracker.Services()}
	list, ok := question.ServiceOf(in, name, nil)
	if !ok || len(list.Services[0].Endpoints) != 3 {
		t.Fatalf("%+v", list)
	}
	for _, e := range list.Services[0].Endpoints {
		silent := strings.HasPrefix(e.Address, "10.0.3.1:")
		if e.Used == silent || silent && !strings.Contains(e.Why, "ejected") {
			t.Errorf("%+v", e)
		}
	}
	why, err := question.Explain().Answer(t.Context(), &question.Document{Snapshot: in, Facts: question.Facts{Mode: "nftables"}}, oracle.Question{From: "10.0.1.9", To: "10.96.0.1:80"})
	if err != nil || len(why.Endpoints) != 2 || !strings.Contains(why.Why, "stopped answering") {
		t.Errorf("%+v, %v", why, err)
	}
}

// A Service whose inputs the engine has not resolved yet is not called programmed.
func TestQueuedServiceIsPending(t *testing.T) {
	in := snapshot()
	in.Services = in.Services[:1]
	in.Services[0].Queued, in.Services[0].Ports = true, nil
	if got := question.Of(question.Facts{}, question.Filter{}, in).Services[0].State; got != question.Pending {
		t.Errorf("state %s", got)
	}
	list, _ := question.ServiceOf(in, in.Services[0].Object.Name, nil)
	if got := list.Services[0].State; got != question.Pending {
		t.Errorf("state %s", got)
	}
}

// A frontend that the mode does not program at all is said to be missing, with no endpoints,
// by all that show frontends; another one of the port is not.
func TestMissingFrontend(t *testing.T) {
	in := snapshot()
	p := in.Services[0].Ports[0]
	other := p.Frontends[0]
	other.Kind, other.At = model.KindClusterIP, netip.MustParseAddrPort("10.96.0.1:80")
	p.Frontends = append(p.Frontends, other)
	in.Backend.Gaps[p.ID] = []model.Gap{{Frontend: p.Frontends[0].At, Missing: true, Detail: "no node ports"}, {Frontend: p.Frontends[0].At, Detail: "no affinity"}}
	name := in.Services[0].Object.Name
	in.Services = in.Services[:1]
	list, _ := question.ServiceOf(in, name, nil)
	for _, frontends := range [][]question.Frontend{
		question.Of(question.Facts{}, question.Filter{}, in).Services[0].Frontends,
		{list.Services[0].Frontends[0].Frontend, list.Services[0].Frontends[1].Frontend},
	} {
		if f := frontends[0]; !f.Missing || f.Endpoints != 0 || !strings.HasPrefix(f.Why, "not programmed") {
			t.Errorf("%+v", f)
		}
		if f := frontends[1]; f.Missing || f.Endpoints != 2 {
			t.Errorf("%+v", f)
		}
	}
	if texts, missing := question.GapsOf(&p.Frontends[0], in.Backend.Gaps[p.ID]); !missing || !slices.Equal(texts, []string{"no node ports"}) {
		t.Errorf("%q", texts)
	}
}

// Source ranges are shown wherever there are any: an empty list is not the same as
// everybody.
func TestSources(t *testing.T) {
	front := func(restricted bool, allow ...string) model.Frontend {
		f := model.Frontend{Kind: model.KindLoadBalancer, At: netip.MustParseAddrPort("203.0.113.1:80"), Restricted: restricted}
		for _, p := range allow {
			f.Allow = append(f.Allow, netip.MustParsePrefix(p))
		}
		return f
	}
	for _, test := range []struct {
		front      model.Frontend
		text, json string // json empty: the field is absent
	}{
		{front(false), "all", ""},
		{front(true), "none", `"sources":[]`},
		{front(true, "198.51.100.0/24"), "198.51.100.0/24", `"sources":["198.51.100.0/24"]`},
		{front(true, "10.0.0.0/8", "11.0.0.0/8", "12.0.0.0/8", "13.0.0.0/8", "14.0.0.0/8"), "10.0.0.0/8, 11.0.0.0/8, 12.0.0.0/8, 13.0.0.0/8 and 1 more", `"14.0.0.0/8"]`},
	} {
		s := snapshot()
		s.Services = s.Services[:1]
		s.Services[0].Ports[0].Frontends = []model.Frontend{test.front}
		d := question.Of(question.Facts{}, question.Filter{}, s)
		if got := question.ShowSources(d.Services[0].Frontends[0].Sources); got != test.text {
			t.Errorf("%q, want %q", got, test.text)
		}
		text, err := json.Marshal(d)
		if err != nil || !strings.Contains(string(text), test.json) || strings.Contains(string(text), `"sources"`) != (test.json != "") {
			t.Errorf("%v, no %q in: %s", err, test.json, text)
		}
	}
}

// A node port says its family, endpoints their share, and Services how many of theirs are ready: of a file of an older
// version, too, whose status does not say it.
func TestFamiliesSharesAndCounts(t *testing.T) {
	name := model.ServiceName{Namespace: "ns", Name: "web"}
	host := &model.Host{Name: "n", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}}
	all, _ := track.Once(host, &model.Objects{
		Services: []*model.Service{{
			Name: name, Type: model.NodePort, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")},
			Ports: []model.ServicePort{{Name: "http", Proto: model.TCP, Port: 80, NodePort: 30080}},
		}},
		Slices: []*model.Slice{{
			Name: model.SliceName{Namespace: "ns", Name: "web-x"}, Service: "web", Ports: []model.SlicePort{{Name: "http", Proto: model.TCP, Port: 8080}},
			Endpoints: []model.SliceEndpoint{
				{Addr: netip.MustParseAddr("10.244.0.1"), State: model.Ready | model.Serving},
				{Addr: netip.MustParseAddr("10.244.0.2"), State: model.Ready | model.Serving},
				{Addr: netip.MustParseAddr("10.244.0.3")},
			},
			Pods: model.PackPods([]string{"web-0", "", "web-2"}),
		}},
	})
	s := &engine.Snapshot{Host: host, Services: all, Suspects: model.Suspects{netip.MustParseAddr("10.244.0.3"): {}}}
	found, ok := question.ServiceOf(s, name, nil)
	if !ok {
		t.Fatal("no such Service")
	}
	one := found.Services[0]
	families := map[string]int{}
	for _, f := range one.Frontends {
		families[f.Kind+" "+f.Family]++
	}
	if families["node port IPv4"] != 1 || families["cluster IP IPv6"] != 1 {
		t.Errorf("%v", families)
	}
	var shares []string
	for _, e := range one.Endpoints {
		shares = append(shares, fmt.Sprint(e.Address, " ", e.Share, " ", e.Unanswered, " ", e.Pod))
	}
	if got := strings.Join(shares, ", "); got != "10.244.0.1:8080 0.5 false web-0, 10.244.0.2:8080 0.5 false , 10.244.0.3:8080 0 true web-2" {
		t.Error(got)
	}
	explained, err := question.Explain().Answer(t.Context(), &question.Document{Snapshot: s}, oracle.Question{From: "host", To: "ns/web:80"})
	if err != nil || len(explained.Endpoints) != 2 || explained.Endpoints[0].Pod != "web-0" || explained.Endpoints[1].Pod != "" {
		t.Errorf("%+v, %v", explained.Endpoints, err)
	}
	counted, counts := question.TopEndpoints{}, question.TopCounts{}
	connections := dataplane.Connections{Proto: model.TCP, At: netip.MustParseAddrPort("10.96.0.1:80"), Endpoint: netip.MustParseAddrPort("10.244.0.1:8080"), New: 3}
	counted.Add(connections)
	counts.Add(connections)
	if top := question.TopOf(question.TopSources{Counts: counts, Endpoints: counted}, all, question.Filter{}); len(top.Services) != 1 || top.Services[0].Endpoints[0].Pod != "web-0" {
		t.Errorf("%+v", top)
	}
	old := question.Status{Services: []question.Service{{Name: "ns/web", State: "Failing"}, {Name: "ns/gone", State: "Failing"}}}
	for what, services := range map[string][]question.Service{
		"now":        question.Of(question.Facts{}, question.Filter{}, s).Services,
		"long since": question.StatusOf(&question.Document{Snapshot: s, Recorded: &question.Recorded{Status: old}}, question.Filter{}).Services,
	} {
		if services[0].Ready != 2 || services[0].NotReady != 1 {
			t.Errorf("%s: %d ready, %d not", what, services[0].Ready, services[0].NotReady)
		}
	}
	if old.Services[0].Ready != 0 {
		t.Error("what was recorded was changed")
	}
}
