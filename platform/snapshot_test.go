// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/conformance"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/snapshot"
)

// A snapshot taken while an endpoint slowly starts is replayed with the weights of that
// moment, in every mode, also redacted.
func TestReplayDuringSlowStart(t *testing.T) {
	for _, m := range Modes() {
		tracker, services, slice, now := slowStart()
		s := tracker.Services()
		f := &snapshot.File{
			Header:   snapshot.Header{Format: snapshot.Format, Mode: m.Name, Config: config.Default(), At: now, Node: &model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}},
			Services: services, Slices: []*model.Slice{slice},
		}
		f.Config.NodeName = "here"
		f.KeepReady(s)
		f.Plan = snapshot.PlanHash(f.Replay(m).Plan)
		var text bytes.Buffer
		if err := snapshot.Write(&text, f); err != nil {
			t.Fatal(err)
		}
		again, err := snapshot.Read(&text)
		if err != nil {
			t.Fatal(err)
		}
		for _, redact := range []bool{false, true} {
			if redact {
				if err := Redact(again, []byte("key")); err != nil {
					t.Fatal(err)
				}
			}
			r, same, err := Replay(again)
			if err != nil || !same {
				t.Fatalf("mode %s: another plan (%v)", m.Name, err)
			}
			if want, got := s[0].Ports[0].Frontends[0].On[0].Pool, r.Ports[0].Frontends[0].On[0].Pool; got.Size() != want.Size() || want.Size() == 3 {
				t.Errorf("mode %s, redacted %t: %d slots, the node had %d", m.Name, redact, got.Size(), want.Size())
			}
		}
	}
}

// In every mode, also of another system, a snapshot is planned byte for byte as when
// it was taken; one whose inputs were edited is not taken for the same.
func TestReplay(t *testing.T) {
	for _, m := range Modes() {
		for seed := range uint64(10) {
			w := conformance.RandomWorld(conformance.NewRand(seed))
			c := config.Default()
			c.NodeName = "here"
			f := &snapshot.File{
				Header:   snapshot.Header{Format: snapshot.Format, Mode: m.Name, Config: c, Node: &model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}},
				Services: w.Services, Slices: w.Slices,
			}
			f.Sort()
			first := f.Replay(m)
			f.Plan = snapshot.PlanHash(first.Plan)
			var text bytes.Buffer
			if err := snapshot.Write(&text, f); err != nil {
				t.Fatal(err)
			}
			again, err := snapshot.Read(bytes.NewReader(text.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			second, same, err := Replay(again)
			if err != nil || !same || second.Plan.Native != first.Plan.Native {
				t.Fatalf("mode %s, seed %d: another plan (%v)", m.Name, seed, err)
			}
			if err := Redact(again, []byte("key")); err != nil {
				t.Fatal(err)
			}
			if _, same, _ := Replay(again); !same {
				t.Errorf("mode %s, seed %d: redacted, it is planned differently each time", m.Name, seed)
			}
			f.Services = nil
			if _, same, _ := Replay(f); same && len(first.Ports) > 0 {
				t.Errorf("mode %s, seed %d: the plan of nothing is taken for the same", m.Name, seed)
			}
		}
	}
}
