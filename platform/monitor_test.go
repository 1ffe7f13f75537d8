// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/track"
)

// seen is a monitor.Source, and the engine that says whose addresses those are: 10.96.0.N is the Service of namespace "N".
type seen struct {
	mu   sync.Mutex
	next []monitor.Seen // of each look
	more bool
	err  error
	mode config.Mode
	did  counts

	syncs  uint64
	traced []monitor.Frontend
}

// counts are how often it was called.
type counts struct{ opened, closed, looks, asked, walks int }

func (s *seen) counts() (c counts) {
	synctest.Wait()
	s.set(func() { c = s.did })
	return c
}

func (s *seen) Look(each func(monitor.Seen)) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did.looks++
	for _, one := range s.next {
		each(one)
	}
	return s.more, s.err
}

func (s *seen) Close() error { s.set(func() { s.did.closed++ }); return nil }

func (s *seen) Current() engine.DataPlane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return engine.DataPlane{Mode: dataplane.Mode{Name: s.mode}}
}

func (s *seen) Status() (now engine.Status) {
	s.set(func() { now.Syncs = s.syncs })
	return now
}

func (s *seen) SnapshotOf(context.Context, func(*track.Tracker) []*track.View) (*engine.Snapshot, error) {
	s.set(func() { s.did.walks++ })
	id := model.PortID{Service: model.ServiceName{Namespace: "shop", Name: "db"}, Proto: model.TCP}
	reject := model.Action{Verdict: model.Reject}
	port := &model.Port{ID: id, Frontends: []model.Frontend{{At: netip.MustParseAddrPort("10.96.0.11:5432"), On: [model.Origins]model.Action{reject, reject, reject}}}}
	return &engine.Snapshot{Services: []*track.View{{Ports: []*model.Port{port}}}}, nil
}

func (s *seen) Trace(_ context.Context, all []monitor.Frontend) error {
	s.set(func() { s.traced = all })
	return nil
}

func (s *seen) Concerned(_ context.Context, to []model.Listener) (engine.Concerned, error) {
	s.set(func() { s.did.asked++ })
	c := engine.Concerned{Host: &model.Host{}, Services: make([][]*track.View, len(to))}
	for i, l := range to {
		if number := l.At.Addr().As4()[3]; number > 0 {
			id := model.PortID{Service: model.ServiceName{Namespace: fmt.Sprint(number), Name: "web"}, Name: "http", Proto: l.Proto}
			c.Services[i] = []*track.View{{Ports: []*model.Port{{ID: id, Frontends: []model.Frontend{{Kind: model.KindClusterIP, At: l.At}}}}}}
		}
	}
	return c, nil
}

func (s *seen) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// connectionsTo are new connections to the Services of namespaces.
func connectionsTo(n int, namespaces ...byte) (all []monitor.Seen) {
	for range n {
		for _, x := range namespaces {
			all = append(all, monitor.Seen{
				Proto: model.TCP, Client: netip.MustParseAddrPort("10.244.0.9:1000"), To: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, x}), 80),
				Fate: oracle.Forward, Endpoint: netip.MustParseAddrPort("10.244.0.1:8080"),
			})
		}
	}
	return all
}

func watching(t *testing.T, s *seen) (w *watcher, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	s.mode = "nftables"
	w = &watcher{engine: s, network: &machineNetwork{}, running: ctx, group: &group, open: func(dataplane.Mode) (monitor.Source, []string, error) {
		s.set(func() { s.did.opened++ })
		return s, []string{"packets that are dropped"}, nil
	}}
	return w, func() { cancel(); group.Wait() }
}

// Nothing is looked at before somebody asks, nor once nobody has for a while; several who ask share one look, and the engine is
// asked once for all that a look has found.
func TestWatchedOnlyWhileAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &seen{next: connectionsTo(3, 1, 0)}
		w, stop := watching(t, s)
		defer stop()
		time.Sleep(time.Hour)
		if c := s.counts(); c != (counts{}) {
			t.Fatalf("before anybody asks: %+v", c)
		}
		next := [2]uint64{}
		got := 0
		for range 100 {
			for i := range next {
				p, err := w.since(next[i])
				if err != nil || len(p.NotShown) != 1 {
					t.Fatalf("%+v, %v", p, err)
				}
				next[i] = p.Next
				got += len(p.Events)
				for _, e := range p.Events {
					if e.Service != "1/web" || e.Frontend != "10.96.0.1:80" || e.Endpoint != "10.244.0.1:8080" {
						t.Fatalf("%+v", e)
					}
				}
			}
			time.Sleep(500 * time.Millisecond)
		}
		if c := s.counts(); c.opened != 1 || c.looks == 0 || c.asked != c.looks || got < 2*490*3 {
			t.Errorf("%+v, %d events", c, got)
		}
		time.Sleep(time.Minute)
		before := s.counts()
		time.Sleep(time.Hour)
		if c := s.counts(); c.closed != 1 || c != before {
			t.Errorf("nobody asks: %+v, then %+v", before, c)
		}
		if p, err := w.since(next[0]); err != nil || p.Forgotten > 0 || len(p.Events) > 0 || s.counts().opened != 2 {
			t.Errorf("asked again: %+v, %v", p, err)
		}
	})
}

// However many connections one namespace has, what is kept is bounded, others are shown, and what is left out is counted.
func TestWatchedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &seen{next: append(connectionsTo(5000, 1), connectionsTo(7, 2)...), more: true}
		w, stop := watching(t, s)
		defer stop()
		p, err := w.since(0)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*time.Second + monitor.Every/2)
		looks := s.counts().looks
		if p, err = w.since(p.Next); err != nil {
			t.Fatal(err)
		}
		shown, leftOut, unread := map[string]int{}, 0, 0
		for _, e := range p.Events {
			switch {
			case e.Unread:
				unread++
			case e.LeftOut > 0:
				leftOut += e.LeftOut
			default:
				shown[e.Namespace]++
			}
		}
		if looks != 20 || len(p.Events) > looks*(2*monitor.Most+1) || shown["2"] != 7*looks || shown["1"] != looks*(monitor.Most-7) || leftOut+shown["1"] != 5000*looks || unread != looks {
			t.Errorf("%d looks: %d events, shown %v, %d left out, %d times unread", looks, len(p.Events), shown, leftOut, unread)
		}
		time.Sleep(8 * time.Second)
		if p, err = w.since(p.Next); err != nil || p.Forgotten == 0 || uint64(len(p.Events))+p.Forgotten != uint64(80*(monitor.Most+2)) {
			t.Errorf("asked late: %d events, %d forgotten, %v", len(p.Events), p.Forgotten, err)
		}
	})
}

// What fails is the answer to the next question, and the one after it begins again; so does another mode.
func TestWatchedFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &seen{err: errors.New("no memory")}
		w, stop := watching(t, s)
		defer stop()
		if _, err := w.since(0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := w.since(0); err == nil || !strings.Contains(err.Error(), "no memory") {
			t.Error(err)
		}
		s.set(func() { s.err = nil })
		first, err := w.since(0)
		if err != nil || s.counts() != (counts{opened: 2, closed: 1, looks: 1, walks: 2}) {
			t.Errorf("%+v, %v", s.counts(), err)
		}
		s.set(func() { s.mode = "iptables" })
		time.Sleep(time.Second)
		synctest.Wait()
		if p, err := w.since(first.Next); err != nil || s.counts().opened != 3 || s.counts().closed != 2 || p.Begun.Equal(first.Begun) {
			t.Errorf("%+v, %v", s.counts(), err)
		}
	})
}

// What may reject packets is known before the first answer, and looked for again only after a change, once a second.
func TestRejectingFrontendsAreTraced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &seen{}
		w, stop := watching(t, s)
		defer stop()
		if _, err := w.since(0); err != nil {
			t.Fatal(err)
		}
		if c := s.counts(); c.walks != 1 || fmt.Sprint(s.traced) != "[{shop tcp 10.96.0.11:5432}]" {
			t.Errorf("%+v, %v", c, s.traced)
		}
		time.Sleep(5 * time.Second)
		if c := s.counts(); c.walks != 1 {
			t.Errorf("nothing has changed: %+v", c)
		}
		for range 40 {
			s.set(func() { s.syncs++ })
			time.Sleep(monitor.Every)
		}
		if c := s.counts(); c.walks < 4 || c.walks > 6 {
			t.Errorf("40 changes in 4 seconds: %+v", c)
		}
	})
}
