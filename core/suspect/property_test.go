// SPDX-License-Identifier: Apache-2.0

package suspect_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/suspect"
)

// In random worlds, whatever happens: an endpoint that answers our SYNs is never ejected again,
// one that is ejected answers nothing, and one that recovers is back within 10.5 s.
func TestRandomWorlds(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 17))
			w := newWorld(t, 1+rng.IntN(4), 2+rng.IntN(7), 1+rng.IntN(5), 1+rng.IntN(200))
			w.rng = rng
			w.addPort(0, 9090)
			lives := map[netip.Addr]time.Time{} // since when
			for range 40 {
				s, n := rng.IntN(len(w.services)), rng.IntN(len(w.services[0].endpoints))
				a := endpoint(n, s)
				switch rng.IntN(8) {
				case 0:
					w.kill(n)
				case 1, 2:
					w.revive(n)
				case 3:
					w.dead[a] = true
				case 4:
					w.closed[a] = !w.closed[a]
				case 5:
					w.denied[[2]netip.Addr{w.services[s].clients[rng.IntN(len(w.services[s].clients))], a}] = rng.IntN(2) == 0
				case 6:
					w.judge.Changed([]netip.Addr{a}, w.now)
				case 7:
					at := w.services[s].endpoints[n].At
					w.shut[at] = !w.shut[at]
				}
				for end := w.now.Add(time.Duration(rng.IntN(8000)) * time.Millisecond); w.now.Before(end); {
					before := len(w.verdict)
					w.run(time.Millisecond)
					w.check(w.verdict[before:], lives)
				}
			}
		})
	}
}

// addPort adds a Service on another port of the endpoints of one.
func (w *world) addPort(of int, port uint16) {
	s := w.services[of]
	s.frontend = netip.AddrPortFrom(ip("10.96.0.%d", 1+len(w.services)), 80)
	s.endpoints = slices.Clone(s.endpoints)
	for i, e := range s.endpoints {
		s.endpoints[i].At = netip.AddrPortFrom(e.At.Addr(), port)
	}
	w.services = append(w.services, s)
}

// check checks what a cycle has decided.
func (w *world) check(news []suspect.Verdict, lives map[netip.Addr]time.Time) {
	w.t.Helper()
	for _, v := range news {
		if !v.Silent {
			continue
		}
		for _, s := range w.services {
			for _, e := range s.endpoints {
				if a := e.At.Addr(); a == v.Addr && !w.dead[a] && !w.shut[e.At] {
					w.t.Fatalf("%s is ejected and answers", e.At)
				}
			}
		}
	}
	for _, s := range w.services {
		for _, e := range s.endpoints {
			a := e.At.Addr()
			switch {
			case w.dead[a] || w.shut[e.At] || !silent(w.last.Suspects, a):
				delete(lives, a)
			case lives[a].IsZero():
				lives[a] = w.now
			case w.now.Sub(lives[a]) > 10500*time.Millisecond:
				w.t.Fatalf("%s lives again for %s and is still ejected", a, w.now.Sub(lives[a]))
			}
		}
	}
}

// A Judge remembers at most as much as fits into 2 MB, whatever is shown to it.
func TestMemoryIsBounded(t *testing.T) {
	size := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	w := newWorld(t, 40, 50, 3, 0)
	for n := range 50 {
		w.kill(n)
	}
	before := size() // what is the world's own
	for range 300 {  // everything waits for everything
		w.now = w.now.Add(200 * time.Millisecond)
		for range 300 {
			s := w.services[w.rng.IntN(len(w.services))]
			w.flow(s, ip("10.244.1.%d", 10+w.rng.IntN(20)), s.endpoints[w.rng.IntN(50)])
		}
		w.cycle()
	}
	w.verdict, w.flows, w.began, w.sent = nil, nil, nil, nil
	if after := size() - before; int64(after) > 2<<20 {
		t.Errorf("%d KB", after>>10)
	} else {
		t.Logf("%d KB", int64(after)>>10)
	}
	runtime.KeepAlive(w)
}
