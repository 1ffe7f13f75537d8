// SPDX-License-Identifier: Apache-2.0

package suspect_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
)

// world is a cluster around one node, in virtual time: clients of Services, and
// endpoints that answer them or not.
type world struct {
	t      *testing.T
	judge  *suspect.Judge
	now    time.Time
	start  time.Time
	rng    *rand.Rand
	nextID uint32

	services []service
	at       map[netip.Addr][]suspect.Endpoint // their endpoints; nil before it is used
	dead     map[netip.Addr]bool               // answers nothing
	deaf     map[netip.Addr]bool               // answers clients, but no SYN of this node
	room     int                               // how many SYNs can be sent in a cycle
	shut     map[netip.AddrPort]bool           // answers nothing, though other ports do
	mute     bool                              // it does not know endpoints
	oneWay   bool                              // answers do not come through this node
	denied   map[[2]netip.Addr]bool
	closed   map[netip.Addr]bool // answers SYNs of this node, but no client

	began   []suspect.Flow                 // since the last look
	flows   map[suspect.Flow]suspect.State // of all that are known
	sent    []netip.AddrPort               // SYNs whose time is not over
	sentAt  time.Time
	probes  int
	looks   int
	verdict []suspect.Verdict
	last    suspect.Decision
}

type service struct {
	namespace string
	frontend  netip.AddrPort
	endpoints []suspect.Endpoint
	clients   []netip.Addr
	perSecond int
}

func ip(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

// newWorld has a number of Services with one endpoint on each of some nodes.
func newWorld(t *testing.T, services, nodes, clients, perSecond int) *world {
	w := &world{
		t: t, room: 64, shut: map[netip.AddrPort]bool{}, start: time.Unix(1000, 0), rng: rand.New(rand.NewPCG(1, 2)), flows: map[suspect.Flow]suspect.State{},
		dead: map[netip.Addr]bool{}, deaf: map[netip.Addr]bool{}, denied: map[[2]netip.Addr]bool{}, closed: map[netip.Addr]bool{},
	}
	w.now = w.start
	w.judge = suspect.New(w.start)
	for s := range services {
		one := service{namespace: "default", frontend: netip.AddrPortFrom(ip("10.96.0.%d", s+1), 80), perSecond: perSecond}
		for n := range nodes {
			one.endpoints = append(one.endpoints, suspect.Endpoint{At: netip.AddrPortFrom(endpoint(n, s), 8080), Node: fmt.Sprintf("node-%d", n+2), Namespace: one.namespace})
		}
		for c := range clients {
			one.clients = append(one.clients, ip("10.244.1.%d", 10+c))
		}
		w.services = append(w.services, one)
	}
	return w
}

// endpoint is that of a Service on a node.
func endpoint(node, service int) netip.Addr { return ip("10.244.%d.%d", node+2, 10+service) }

func (w *world) Of(f suspect.Flow) ([]suspect.Endpoint, bool) {
	for _, s := range w.services {
		if s.frontend == f.Frontend && !w.mute {
			return s.endpoints, true
		}
	}
	return nil, !w.mute
}

func (w *world) At(a netip.Addr) ([]suspect.Endpoint, bool) {
	if w.mute {
		return nil, false
	}
	if w.at == nil {
		w.at = map[netip.Addr][]suspect.Endpoint{}
		for _, s := range w.services {
			for _, e := range s.endpoints {
				w.at[e.At.Addr()] = append(w.at[e.At.Addr()], e)
			}
		}
	}
	return w.at[a], true
}

// connect lets the clients connect for a while, evenly.
func (w *world) connect(d time.Duration) {
	for _, s := range w.services {
		for range int(float64(s.perSecond)*d.Seconds() + w.rng.Float64()) {
			pool := s.pool(w)
			e := pool[w.rng.IntN(len(pool))]
			w.flow(s, s.clients[w.rng.IntN(len(s.clients))], e)
		}
	}
}

// pool is the Service's after half of it at most was ejected.
func (s service) pool(w *world) (kept []suspect.Endpoint) {
	passed := 0
	for _, e := range s.endpoints {
		if silent(w.last.Suspects, e.At.Addr()) && passed < len(s.endpoints)/2 {
			passed++
			continue
		}
		kept = append(kept, e)
	}
	return kept
}

func (w *world) flow(s service, client netip.Addr, e suspect.Endpoint) {
	w.nextID++
	f := suspect.Flow{ID: w.nextID, Client: netip.AddrPortFrom(client, uint16(w.nextID)), Frontend: s.frontend, Endpoint: e.At}
	a := e.At.Addr()
	w.flows[f] = suspect.Answered
	if w.dead[a] || w.shut[e.At] || w.closed[a] || w.oneWay || w.denied[[2]netip.Addr{client, a}] {
		w.flows[f] = suspect.Waiting
	}
	w.began = append(w.began, f)
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		pause := w.last.Pause
		if pause == 0 {
			pause = 200 * time.Millisecond
		}
		w.connect(pause)
		w.now = w.now.Add(pause)
		w.cycle()
	}
}

// synTimeout is when a SYN of this node counts as not answered.
const synTimeout = 500 * time.Millisecond

func (w *world) cycle() {
	w.looks++
	for _, f := range w.began {
		w.judge.Saw(f, suspect.Unknown, w.now, w.now)
	}
	w.began = nil
	due := w.judge.Due(w.now)
	for i, f := range due {
		state, is := w.flows[f]
		if !is {
			state = suspect.Gone
		}
		w.judge.Checked(i, state, w.now)
		if state == suspect.Answered {
			delete(w.flows, f)
		}
	}
	if w.now.Sub(w.sentAt) >= synTimeout {
		for _, at := range w.sent {
			w.judge.Probed(at, suspect.Waiting, w.sentAt, w.now)
		}
		w.sent = nil
	}
	probe := w.judge.Review(w.now, w, w.room)
	if len(probe) > w.room {
		w.t.Fatalf("%d SYNs, of which %d can be sent", len(probe), w.room)
	}
	w.probes += len(probe)
	for _, at := range probe {
		a := at.Addr()
		if !w.dead[a] && !w.deaf[a] && !w.shut[at] {
			w.judge.Probed(at, suspect.Answered, w.now, w.now)
			continue
		}
		w.sent, w.sentAt = append(w.sent, at), w.now
	}
	before := w.last.Suspects
	w.last = w.judge.Decide(w.now)
	w.verdict = append(w.verdict, w.last.Verdicts...)
	for f, state := range w.flows { // as core/flows does
		if state == suspect.Waiting && silent(w.last.Suspects, f.Endpoint.Addr()) && !silent(before, f.Endpoint.Addr()) {
			delete(w.flows, f)
		}
	}
}

func silent(s model.Suspects, a netip.Addr) bool {
	back, is := s[a]
	return is && back.IsZero()
}

func (w *world) suspects() (all []string) {
	for a, back := range w.last.Suspects {
		if back.IsZero() {
			all = append(all, a.String())
		}
	}
	slices.Sort(all)
	return all
}

func (w *world) want(suspects ...string) {
	w.t.Helper()
	if got := w.suspects(); !slices.Equal(got, suspects) {
		w.t.Fatalf("suspects %v, want %v; verdicts: %v", got, suspects, w.verdict)
	}
}

func (w *world) kill(node int) {
	for s := range w.services {
		w.dead[endpoint(node, s)] = true
	}
}

func (w *world) revive(node int) {
	for s := range w.services {
		delete(w.dead, endpoint(node, s))
		maps.DeleteFunc(w.flows, func(f suspect.Flow, _ suspect.State) bool { return f.Endpoint.Addr() == endpoint(node, s) })
	}
}
