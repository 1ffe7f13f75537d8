// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/dataplane/memory"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/track"
)

const (
	changesPerWorld   = 12
	packetsPerChange  = 32
	writesPerCommit   = 64  // that are looked at, at its beginning and at its end; between those one of as many
	endpointsPerWrite = 256 // that packets may reach: those that reach more are sent after later writes
)

// EachWrite changes random worlds, and sends packets after every single op: none reaches an
// endpoint that it reaches neither before the change nor after it, and one that has endpoints before
// and after has some in between. So it does not matter where a transaction or a process ends.
// A third of the changes is found by a process that starts. There are half as many worlds as for Run.
func (s Suite[K, V]) EachWrite(t *testing.T) {
	worlds := s.Worlds
	if worlds == 0 {
		worlds = *worldCount / 2
	}
	if testing.Short() {
		worlds = min(worlds, 5)
	}
	ops, packets := 0, 0
	for seed := *worldFrom; seed < *worldFrom+uint64(worlds); seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			w := s.writes(t, seed)
			ops, packets = ops+w.ops, packets+w.packets
		})
	}
	t.Logf("%d packets after %d ops", packets, ops)
}

// writes takes one random world through its changes.
func (s Suite[K, V]) writes(t *testing.T, seed uint64) *writes[K, V] {
	rng := NewRand(seed)
	now := RandomWorld(rng)
	w := &writes[K, V]{Driver: memory.New[K](s.Compiler.Equal, dataplane.Limits{Batch: rng.IntN(3) * 7})}
	var b dataplane.Backend
	var tracker *track.Tracker
	start := func() {
		b, tracker = dataplane.New(s.Compiler, w), track.New()
		if err := b.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		tracker.KeepSlots(b.Slots)
		now.Feed(tracker, Random{})
		b.SetHost(now.Host)
	}
	sync := func() {
		b.Update(tracker.Flush())
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start()
	sync()
	for change := range changesPerWorld {
		next := now.Change(rng)
		next.Host, next.Config = now.Host, now.Config // what must stay at a change of the host is not known
		probes := append(Probes(now.Host, now.Ports()), Probes(next.Host, next.Ports())...)
		rng.Shuffle(len(probes), func(i, j int) { probes[i], probes[j] = probes[j], probes[i] })
		was, will := s.Sim(w.Objects, now.Host), s.Sim(s.objects(t, next), now.Host)
		w.sent = w.sent[:0]
		for _, p := range probes {
			before, after := was(p), will(p)
			changes := Diff(before, after) != ""
			if len(w.sent) < packetsPerChange && (changes || before.Fate == oracle.Forward && len(w.sent)%4 == 0) {
				w.sent = append(w.sent, sent{p, before, after})
			}
		}
		w.look = func(op ledger.Op[K, V]) {
			is, endpoints := s.Sim(w.Objects, now.Host), 0
			for range w.sent {
				w.packets++
				p := w.sent[w.packets%len(w.sent)]
				o := is(p.Packet)
				if wrong := p.wrong(o); wrong != "" {
					t.Errorf("change %d, after %s %v: %s %s", change, op.Verb, op.Key, Show(p.Packet), wrong)
				}
				if endpoints += len(o.Endpoints); endpoints > endpointsPerWrite {
					break
				}
			}
		}
		if rng.IntN(3) == 0 {
			now = next
			start()
		} else {
			next.Feed(tracker, now)
			now = next
		}
		sync()
		w.look = nil
	}
	return w
}

func (s Suite[K, V]) objects(t *testing.T, w Random) map[K]V {
	out, err := compile(s.Compiler, w.Host, w.Ports())
	if err != nil {
		t.Fatal(err)
	}
	return out.objects
}

// writes is a data plane that is looked at after each op.
type writes[K comparable, V any] struct {
	*memory.Driver[K, V]
	look         func(ledger.Op[K, V]) // nil for not
	sent         []sent
	ops, packets int
}

// Commit implements dataplane.Driver.
func (w *writes[K, V]) Commit(ctx context.Context, ops []ledger.Op[K, V]) (errs []error) {
	for i, op := range ops {
		errs = append(errs, w.Driver.Commit(ctx, ops[i:i+1])...)
		begins, ends := i < writesPerCommit, i >= len(ops)-writesPerCommit
		if w.look != nil && (begins || ends || i%writesPerCommit == 0) {
			w.ops++
			w.look(op)
		}
	}
	return errs
}

// sent is a packet, with what becomes of it before a change and after it.
type sent struct {
	oracle.Packet
	before, after oracle.Outcome
}

// wrong returns what must not become of a packet meanwhile.
func (p sent) wrong(is oracle.Outcome) string {
	for _, e := range is.Endpoints {
		to := func(o oracle.Target) bool { return o.Addr == e.Addr }
		if !slices.ContainsFunc(p.before.Endpoints, to) && !slices.ContainsFunc(p.after.Endpoints, to) {
			return fmt.Sprintf("reaches %s, which it must not before (%s) or after (%s)", e.Addr, show(p.before), show(p.after))
		}
	}
	if p.before.Fate == oracle.Forward && p.after.Fate == oracle.Forward && (is.Fate != oracle.Forward || len(is.Endpoints) == 0) {
		return fmt.Sprintf("has no endpoint: %s, before %s, after %s", show(is), show(p.before), show(p.after))
	}
	return ""
}
