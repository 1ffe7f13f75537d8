// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/core/track"
)

func trackerOf(w conformance.Random) *track.Tracker {
	t := track.New()
	t.SetHost(w.Host)
	for _, s := range w.Services {
		t.Set(s)
	}
	for _, s := range w.Slices {
		t.Set(s)
	}
	t.Flush()
	return t
}

// questions are about every frontend of a world and what is beside it.
func questions(t *track.Tracker) (all []oracle.Question) {
	senders := []string{"host", "pod", "outside", "198.51.100.7", "10.0.0.1", "2001:db8::7"}
	for _, s := range t.Services() {
		for _, p := range s.Ports {
			targets := []string{s.Object.Name.String(), fmt.Sprintf("%s:%s/%s", s.Object.Name, p.ID.Name, p.ID.Proto), s.Object.Name.String() + ":nothing"}
			for _, f := range p.Frontends {
				at := f.At
				if at.Addr().IsUnspecified() {
					own, _ := t.Host().Primary(p.ID.Family)
					at = netip.AddrPortFrom(own, at.Port())
				}
				for _, to := range []netip.AddrPort{at, netip.AddrPortFrom(at.Addr(), at.Port()+1), netip.AddrPortFrom(netip.MustParseAddr("198.51.100.9"), at.Port())} {
					targets = append(targets, to.String(), to.String()+"/"+p.ID.Proto.String())
				}
			}
			for _, to := range targets {
				for _, from := range senders {
					all = append(all, oracle.Question{From: from, To: to})
				}
			}
		}
	}
	return all
}

// An answer by the Services that a question concerns is the one by all of them, and mostly
// they are few.
func TestConcernedServicesAreEnough(t *testing.T) {
	asked, narrow := 0, 0
	for seed := range uint64(60) {
		tracker := trackerOf(conformance.RandomWorld(conformance.NewRand(seed)))
		for _, q := range questions(tracker) {
			few, all := question.Explain().Needs(q).Services(tracker), tracker.Services()
			track.SortServices(few) // as Known does
			explain := func(services []*track.View) string {
				e, err := question.Explain().Answer(t.Context(), &question.Document{Snapshot: &engine.Snapshot{Host: tracker.Host(), Services: services}}, q)
				return fmt.Sprintf("%+v %v", e, err)
			}
			if got, want := explain(few), explain(all); got != want {
				t.Fatalf("seed %d, %+v: by %d Services\n%s\nby all %d\n%s", seed, q, len(few), got, len(all), want)
			}
			if asked++; len(few) <= 3 {
				narrow++
			}
		}
	}
	t.Logf("%d questions, %d of them by 3 Services at most", asked, narrow)
	if asked < 1000 || narrow*2 < asked {
		t.Error("nothing was asked, or most questions need all Services")
	}
}

// What an edit is said to change is what resolving everything again gives.
func TestPreviewResolvesWhatItTouches(t *testing.T) {
	changed := 0
	for seed := range uint64(300) {
		rng := conformance.NewRand(seed)
		w := conformance.RandomWorld(rng)
		now := trackerOf(w)
		s := &engine.Snapshot{Host: w.Host, Services: now.Services()}
		other := conformance.RandomWorld(conformance.NewRand(seed + 1000))
		edit := question.Edit{Objects: model.Objects{Services: other.Services[:min(2, len(other.Services))], Slices: other.Slices[:min(3, len(other.Slices))]}, Prune: rng.IntN(4) == 0}
		got, _ := edit.Deltas(s, time.Now(), nil)
		want := reference(edit, s)
		if !slices.EqualFunc(got, want, func(a, b model.Delta) bool { return a.ID() == b.ID() && a.Old == b.Old && samePort(a.New, b.New) }) {
			t.Fatalf("seed %d, prune %t: %d deltas, want %d\n%+v\n%+v", seed, edit.Prune, len(got), len(want), got, want)
		}
		changed += len(got)
	}
	if changed < 100 {
		t.Errorf("%d ports changed: too few to show anything", changed)
	}
}

// No Service takes an address of the API server, also where its EndpointSlices have no Service; they are
// pruned with everything else.
func TestPreviewKnowsTheAPIServerWithoutItsService(t *testing.T) {
	at := netip.MustParseAddr("192.0.2.10")
	api := webSlice(1)
	api.Name, api.Service = model.SliceName{Namespace: resolve.APIService.Namespace, Name: "api"}, resolve.APIService.Name
	api.Endpoints[0].Addr, api.Ports[0].Port = at, 6443
	tracker := track.New()
	tracker.SetHost(&model.Host{Name: "here"})
	tracker.Set(api)
	tracker.Set(webSlice(1))
	tracker.Flush()
	s := &engine.Snapshot{Host: tracker.Host(), Services: tracker.Services(), Orphans: tracker.Orphans()}
	web := &model.Service{
		Name: model.ServiceName{Namespace: "shop", Name: "web"}, Type: model.ClusterIP,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, ExternalIPs: []netip.Addr{at},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 6443}},
	}
	for prune, want := range map[bool]int{false: 1, true: 2} {
		deltas, problems := question.Edit{Objects: model.Objects{Services: []*model.Service{web}}, Prune: prune}.Deltas(s, time.Now(), nil)
		if len(deltas) != 1 || len(deltas[0].New.Frontends) != want || len(problems) != 2-want {
			t.Errorf("prune %t: %+v, %v", prune, deltas, problems)
		}
	}
	tracker.Set(web)
	tracker.Flush()
	if ports := tracker.Service(web.Name).Ports; len(ports) != 1 || len(ports[0].Frontends) != 1 {
		t.Errorf("the running proxy has %+v", ports)
	}
}

// What an edit asks of the node's own addresses depends on who listens there now: what the running proxy knows of
// those that Services have, and what it finds of the others.
func TestPreviewAsksWhoListens(t *testing.T) {
	at := netip.MustParseAddr("192.0.2.1")
	host := &model.Host{Name: "here", IPs: []netip.Addr{at}, Guard: model.Guard{NodeIPs: []netip.Addr{at}, FixedIPs: []netip.Addr{at}}}
	host.Guard.Listeners = &model.Listeners{}
	s := &engine.Snapshot{Host: host}
	service := func(port uint16) *model.Service {
		return &model.Service{
			Name: model.ServiceName{Namespace: "shop", Name: "web"}, Type: model.ClusterIP,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, ExternalIPs: []netip.Addr{at},
			Ports: []model.ServicePort{{Proto: model.TCP, Port: port}},
		}
	}
	ask := func(places []model.Listener) (found []model.Listener, err error) {
		for _, p := range places {
			if p.At.Port() == 81 {
				found = append(found, model.Listener{Proto: p.Proto, At: p.At, Name: "nginx"})
			}
		}
		return found, nil
	}
	for port, want := range map[uint16]int{80: 2, 81: 1} {
		deltas, problems := question.Edit{Objects: model.Objects{Services: []*model.Service{service(port)}}}.Deltas(s, time.Now(), ask)
		if len(deltas) != 1 || len(deltas[0].New.Frontends) != want || len(problems) != 2-want {
			t.Errorf("port %d: %+v, %v", port, deltas, problems)
		}
	}
}

func samePort(a, b *model.Port) bool { return (a == nil) == (b == nil) && (a == nil || a.Equal(b)) }

// reference resolves everything with an edit.
func reference(e question.Edit, s *engine.Snapshot) (deltas []model.Delta) {
	services, from, old := map[model.ServiceName]*model.Service{}, map[model.SliceName]*model.Slice{}, map[model.PortID]*model.Port{}
	for _, svc := range s.Services {
		for _, p := range svc.Ports {
			old[p.ID] = p
		}
		if !e.Prune {
			services[svc.Object.Name] = svc.Object
			for _, slice := range svc.Slices {
				from[slice.Name] = slice
			}
		}
	}
	for _, svc := range e.Services {
		services[svc.Name] = svc
	}
	for _, slice := range e.Slices {
		from[slice.Name] = slice
	}
	t := track.New()
	t.SetHost(s.Host)
	for _, svc := range services {
		t.Set(svc)
	}
	for _, slice := range from {
		t.Set(slice)
	}
	t.Flush()
	for _, svc := range t.Services() {
		for _, p := range svc.Ports {
			before := old[p.ID]
			if delete(old, p.ID); before != nil {
				resolve.Reslot(p, before, nil)
			}
			if !p.Equal(before) {
				deltas = append(deltas, model.Delta{Old: before, New: p})
			}
		}
	}
	for _, p := range old {
		deltas = append(deltas, model.Delta{Old: p})
	}
	slices.SortFunc(deltas, func(a, b model.Delta) int { return a.ID().Compare(b.ID()) })
	return deltas
}

// slowStart is a tracker with a Service whose third endpoint is half way to its weight.
func slowStart() (tracker *track.Tracker, services []*model.Service, slice *model.Slice, now time.Time) {
	tracker, now = track.New(), time.Unix(1000, 0)
	tracker.SetClock(func() time.Time { return now })
	tracker.SetHost(&model.Host{Name: "here"})
	svc := &model.Service{
		Name: model.ServiceName{Namespace: "shop", Name: "web"}, Type: model.ClusterIP, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
	}
	svc.Choice.SlowStart = 90 * time.Second
	tracker.Set(svc)
	tracker.Set(webSlice(2))
	tracker.Flush()
	slice = webSlice(3)
	tracker.Set(slice)
	tracker.Flush()
	now = now.Add(45 * time.Second)
	tracker.Flush()
	return tracker, []*model.Service{svc}, slice, now
}

func webSlice(endpoints int) *model.Slice {
	s := &model.Slice{Name: model.SliceName{Namespace: "shop", Name: "web-1"}, Service: "web", Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), State: model.Ready | model.Serving})
	}
	return s
}

// A preview during a slow start keeps the weights of that moment.
func TestPreviewDuringSlowStart(t *testing.T) {
	tracker, services, slice, now := slowStart()
	s := &engine.Snapshot{Host: tracker.Host(), Services: tracker.Services()}
	if d, _ := (question.Edit{Objects: model.Objects{Services: services, Slices: []*model.Slice{slice}}}).Deltas(s, now, nil); len(d) != 0 {
		t.Errorf("an edit that changes nothing changes weights: %+v", d[0].New.Frontends[0].On[0].Pool)
	}
	d, _ := question.Edit{Objects: model.Objects{Services: services, Slices: []*model.Slice{webSlice(4)}}}.Deltas(s, now, nil)
	if len(d) != 1 {
		t.Fatalf("%d deltas", len(d))
	}
	pool := d[0].New.Frontends[0].On[0].Pool
	if ratio := pool.Share(2) / pool.Share(0); ratio < 0.3 || ratio > 0.7 {
		t.Errorf("half way the new endpoint has %.2f of another's share, foretold as %+v", ratio, pool)
	}
}
