// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// planned is what a snapshot means, planned in a mode.
func planned(f *snapshot.File, m dataplane.Mode) *snapshot.Result {
	r := f.Resolve()
	r.Plan = m.Plan(&f.Config, r.Host, r.Ports)
	return r
}

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
		f.Record(planned(f, m))
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
				again.Redact([]byte("key"))
			}
			r, likeness, err := Replay(again)
			if err != nil || likeness != snapshot.Same {
				t.Fatalf("mode %s: another plan (%v)", m.Name, err)
			}
			if want, got := s[0].Ports[0].Frontends[0].On[0].Pool, r.Ports()[0].Frontends[0].On[0].Pool; got.Size() != want.Size() || want.Size() == 3 {
				t.Errorf("mode %s, redacted %t: %d slots, the node had %d", m.Name, redact, got.Size(), want.Size())
			}
		}
	}
}

// In every mode of both systems a snapshot is planned byte for byte as when it was taken; one
// whose inputs were edited is not taken for the same.
func TestReplay(t *testing.T) {
	relays := map[string]string{} // their plan by system
	for _, system := range []string{"linux", "windows"} {
		for _, m := range modesOn(system, noHandover) {
			for seed := range uint64(10) {
				if first := replayTwice(t, system, m, seed); m.Name == relay.Mode && seed == 0 {
					relays[system] = first
				}
			}
		}
	}
	if relays["linux"] == relays["windows"] {
		t.Error("relays are planned alike on both systems: the system of a snapshot does not matter")
	}
}

func replayTwice(t *testing.T, system string, m dataplane.Mode, seed uint64) (native string) {
	t.Helper()
	w := conformance.RandomWorld(conformance.NewRand(seed))
	c := config.Default()
	c.NodeName = "here"
	f := &snapshot.File{
		Header:   snapshot.Header{Format: snapshot.Format, System: system, Mode: m.Name, Config: c, Node: &model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}},
		Services: w.Services, Slices: w.Slices,
	}
	f.Sort()
	first := planned(f, m)
	f.Record(first)
	f.Plan = snapshot.PlanHash(first.Plan)
	var text bytes.Buffer
	if err := snapshot.Write(&text, f); err != nil {
		t.Fatal(err)
	}
	again, err := snapshot.Read(bytes.NewReader(text.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	second, likeness, err := Replay(again)
	if err != nil || likeness != snapshot.Same || second.Plan.Native != first.Plan.Native {
		t.Fatalf("%s, mode %s, seed %d: another plan (%v)", system, m.Name, seed, err)
	}
	again.Redact([]byte("key"))
	if _, likeness, _ := Replay(again); likeness != snapshot.Same {
		t.Errorf("%s, mode %s, seed %d: redacted, it is planned differently each time", system, m.Name, seed)
	}
	f.Services = nil
	if _, likeness, _ := Replay(f); likeness != snapshot.Differs && len(first.Ports) > 0 {
		t.Errorf("%s, mode %s, seed %d: the plan of nothing is taken for the same", system, m.Name, seed)
	}
	f.Ports, f.Plan = "0:"+f.Ports, ""
	if _, likeness, _ := Replay(f); likeness != snapshot.Unrecorded {
		t.Errorf("%s, mode %s, seed %d: a hash of another scheme is compared: %d", system, m.Name, seed, likeness)
	}
	return first.Plan.Native
}

// Snapshots that were made before, of modes of both systems, mean the same to this tandem on
// this system, byte for byte. With -update those are written anew that do not, and that are not there:
// the others stay as an earlier version has written them.
func TestReplayOfEarlierSnapshots(t *testing.T) {
	for _, m := range Modes() {
		path := filepath.Join("testdata", string(m.Name)+".snapshot")
		err := replays(path)
		if err != nil && flag.Lookup("update").Value.String() == "true" {
			writeGolden(t, path, m)
			err = replays(path)
		}
		if err != nil {
			t.Errorf("%s: %v; rewrite with -update if that is meant", path, err)
		}
	}
}

// replays returns nil where a snapshot means what it did.
func replays(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := snapshot.Read(bytes.NewReader(text))
	if err != nil {
		return err
	}
	r, likeness, err := Replay(f)
	if err == nil && (likeness != snapshot.Same || len(r.Ports()) < 10 || r.Plan.Objects < 10) {
		err = fmt.Errorf("the same plan: %t; %d ports, %d objects", likeness == snapshot.Same, len(r.Ports()), r.Plan.Objects)
	}
	return err
}

// writeGolden writes a snapshot of a random world in a mode.
func writeGolden(t *testing.T, path string, m dataplane.Mode) {
	t.Helper()
	w := conformance.RandomWorld(conformance.NewRand(3))
	c := config.Default()
	c.NodeName = "here"
	f := &snapshot.File{
		Header: snapshot.Header{
			Format: snapshot.Format, Version: "golden", System: cmp.Or(m.System, "linux"), Mode: m.Name, Config: c, At: time.Unix(1_700_000_000, 0).UTC(),
			Node: &model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}},
		},
		Services: w.Services, Slices: w.Slices,
	}
	f.Sort()
	now := planned(f, m)
	f.Record(now)
	f.Plan = snapshot.PlanHash(now.Plan)
	var text bytes.Buffer
	if err := errors.Join(snapshot.Write(&text, f), os.MkdirAll(filepath.Dir(path), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
