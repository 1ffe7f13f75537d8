// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/redact"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// sink is a file in memory.
type sink struct {
	bytes.Buffer
	full error // of the next write
}

func (s *sink) Close() error { return nil }

func (s *sink) Write(b []byte) (int, error) {
	if s.full != nil {
		return 0, s.full
	}
	return s.Buffer.Write(b)
}

// process is a proxy that lives through some changes, whose inputs are said in words.
type process struct {
	hns       hns.HNS
	kind      string
	mac       string // of the node
	journal   string
	say       func(string) string
	endpoints []string // of the Service web, one change after the other; empty: deleted
}

func (p process) run(t *testing.T) (err error) {
	at := func(s string) netip.Addr { return netip.MustParseAddr(p.say(s)) }
	c := config.Config{Windows: config.Windows{NetworkName: p.say("pods"), RootHNSEndpoint: p.say("cbr0"), DSR: true}}
	if p.kind == hns.TypeOverlay {
		c.Windows.SourceVIP = p.say("10.244.1.254")
	}
	b, err := hns.Open(t.Context(), p.hns, &c, hns.Settings{Journal: p.journal, MAC: func(netip.Addr) (string, error) { return p.mac, nil }})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := b.Adopt(t.Context()); err != nil {
		return err
	}
	b.SetHost(&model.Host{Name: "node-1", IPs: []netip.Addr{at("192.0.2.1")}})
	service := func(name, vip, endpoints string) *model.Port {
		s := port(name, vip, endpoints)
		for i := range s.Frontends {
			f := &s.Frontends[i]
			f.At = netip.AddrPortFrom(at(vip), f.At.Port())
			if pool := f.On[0].Pool; pool != nil && i == 0 { // one for all origins
				for j := range pool.Endpoints {
					e := &pool.Endpoints[j]
					e.Addr = netip.AddrPortFrom(at(e.Addr.Addr().String()), e.Addr.Port())
				}
			}
		}
		return s
	}
	b.Update([]model.Delta{{New: service("api", "10.96.0.11", "10.244.2.2 10.244.2.3")}})
	var before *model.Port
	for _, endpoints := range p.endpoints {
		var now *model.Port
		if endpoints != "" {
			now = service("web", "10.96.0.10", endpoints)
		}
		b.Update([]model.Delta{{Old: before, New: now}})
		before = now
		if _, err := b.Sync(t.Context()); err != nil {
			return err
		}
	}
	if _, err := b.Audit(t.Context()); err != nil {
		return err
	}
	_, err = b.Sync(t.Context())
	return err
}

// record has two processes, one after the other, on one HNS, and returns what each asked.
func record(t *testing.T, v hns.Version, kind string, key []byte) (first, second string) {
	emu := hnsemu.New(v)
	network := emu.AddNetwork("pods", kind, overlay()...)
	emu.AddPod(network, "10.244.1.2")
	emu.AddPod(network, "10.244.1.3")
	emu.AddEndpoint(hns.Endpoint{Name: "cbr0", HostComputeNetwork: network, IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.1.1", PrefixLength: 24}}, Policies: []hns.Policy{
		{Type: "OutBoundNAT", Settings: []byte(`{"Exceptions":["10.96.0.0/16"],"Adapter":"Contoso 10G"}`)},
	}})
	journal := filepath.Join(t.TempDir(), "journal")
	var texts [2]string
	for i, endpoints := range lives {
		var file sink
		p := process{hns.Record(emu.Client(), &file, key, slog.New(slog.DiscardHandler)), kind, hostMAC, journal, func(s string) string { return s }, endpoints}
		if err := p.run(t); err != nil {
			t.Fatal(err)
		}
		texts[i] = file.String()
	}
	if n := emu.Handles(); n > 0 {
		t.Errorf("%d handles are open", n)
	}
	return texts[0], texts[1]
}

// lives are the endpoints of the Service web in one process and in the next.
var lives = [][]string{
	{"10.244.1.2 10.244.2.2", "10.244.2.2 10.244.3.2 10.244.2.9", "10.244.1.3"},
	{"10.244.1.3", "", "10.244.1.2 10.244.3.2"},
}

// eachRecorded runs a test for each version and kind of network.
func eachRecorded(t *testing.T, test func(t *testing.T, v hns.Version, kind string)) {
	for _, v := range []hns.Version{hnsemu.WS2019, hnsemu.WS2022, hnsemu.WS2025} {
		for _, kind := range []string{hns.TypeL2Bridge, hns.TypeOverlay} {
			t.Run(fmt.Sprintf("%s %s", v, kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { test(t, v, kind) })
			})
		}
	}
}

// calls reads a recording.
func calls(t *testing.T, text string) []hns.Call {
	t.Helper()
	all, err := hnsemu.ReadRecording(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A player of a recording, whose proxy is given the same inputs in its words, is asked what
// was asked then, and no more: so is a process that finds a journal. Another input is a
// request that the recording does not have.
func TestARecordingIsPlayed(t *testing.T) {
	eachRecorded(t, func(t *testing.T, v hns.Version, kind string) {
		key := []byte("key")
		first, second := record(t, v, kind, key)
		journal, mac := filepath.Join(t.TempDir(), "journal"), macIn(calls(t, first))
		for i, text := range []string{first, second} {
			all := calls(t, text)
			player := hnsemu.NewPlayer(all)
			p := process{player, kind, mac, journal, redact.New(key).Text, lives[i]}
			if err := p.run(t); err != nil {
				t.Error(err)
			}
			for _, d := range player.Differences() {
				t.Error(d)
			}
			t.Logf("%d calls, %d bytes", len(all), len(text))
		}
		player := hnsemu.NewPlayer(calls(t, first))
		p := process{player, kind, mac, filepath.Join(t.TempDir(), "journal"), redact.New(key).Text, []string{"10.244.1.2 10.244.2.7"}}
		if err := p.run(t); err == nil || len(player.Differences()) < 2 || !strings.Contains(player.Differences()[0], "not in the recording: Create") {
			t.Errorf("another endpoint: %v, %q", err, player.Differences())
		}
	})
}

// macIn finds the hardware address of the node in the VIP endpoints of an overlay.
func macIn(all []hns.Call) string {
	for _, c := range all {
		if c.Name == "CreateEndpoint" && bytes.Contains(c.Request, []byte("tandem-vip_")) {
			_, rest, _ := bytes.Cut(c.Request, []byte(`"MacAddress":"`))
			return string(rest[:len(hostMAC)])
		}
	}
	return hostMAC
}

// The emulator answers a recording as the HNS that was recorded did. One that behaves
// otherwise is told apart.
func TestARecordingIsReplayed(t *testing.T) {
	eachRecorded(t, func(t *testing.T, v hns.Version, kind string) {
		first, second := record(t, v, kind, []byte("key"))
		for _, text := range []string{first, second} {
			differences, err := hnsemu.Replay(calls(t, text))
			if err != nil || len(differences) > 0 {
				t.Errorf("%v, %q", err, differences)
			}
		}
		for was, is := range map[string]string{
			`"call":"CreateBalancer"`: `"failed":{"function":"HcnCreateLoadBalancer","code":"0x803b0013"},"call":"CreateBalancer"`,
			`"ExternalPort":80`:       `"ExternalPort":80,"DistributionType":4`,
			`"call":"DeleteBalancer"`: `"failed":{"function":"HcnDeleteLoadBalancer","code":"0x1f"},"call":"DeleteBalancer"`,
		} {
			text := first
			if !strings.Contains(text, was) {
				text = second
			}
			changed := strings.Replace(text, was, is, 1)
			if was == `"ExternalPort":80` { // in an answer
				head, tail, _ := strings.Cut(text, `"answer":{"ID":`)
				changed = head + `"answer":{"ID":` + strings.Replace(tail, was, is, 1)
			}
			if differences, err := hnsemu.Replay(calls(t, changed)); changed == text || err != nil || len(differences) == 0 {
				t.Errorf("%s: %v, %q", is, err, differences)
			}
		}
		if _, err := hnsemu.Replay(nil); err == nil {
			t.Error("a recording without a version is replayed")
		}
	})
}

// The emulator answers the recordings of real machines that are kept as those did: each line
// here is something to mend in the emulator.
func TestKeptRecordings(t *testing.T) {
	files, err := filepath.Glob("../test/hnsemu/reports/*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		differences, err := hnsemu.Replay(calls(t, string(text)))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, d := range differences {
			t.Errorf("%s: %s", file, d)
		}
	}
	t.Logf("%d recordings of real machines", len(files))
}

// A recording has no word of the node, equal ones are replaced by equal ones, and another key
// replaces them otherwise.
func TestARecordingIsRedacted(t *testing.T) {
	eachRecorded(t, func(t *testing.T, v hns.Version, kind string) {
		first, second := record(t, v, kind, []byte("key"))
		for _, word := range []string{"10.244.", "10.96.", "192.0.2.", "pods", "Contoso", "00000000-0000-4000", strings.ToLower(hostMAC), hostMAC, "00-15-5d-00-00-01"} {
			if strings.Contains(first+second, word) {
				t.Errorf("%q is in the recording", word)
			}
		}
		again, _ := record(t, v, kind, []byte("key"))
		other, _ := record(t, v, kind, []byte("another"))
		if a, b := untimed(first), untimed(again); a != b {
			t.Errorf("one key, two recordings:\n%s\n%s", a, b)
		}
		if untimed(first) == untimed(other) {
			t.Error("two keys, one recording")
		}
	})
}

// untimed is a recording without times, sorted: independent calls come in any order.
func untimed(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i], _, _ = strings.Cut(lines[i], `,"us":`)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// A file that is full, or too large, ends the recording and nothing else. A last line that is
// cut short is left out; what is no recording is refused.
func TestARecordingEnds(t *testing.T) {
	emu := hnsemu.New(hnsemu.WS2025)
	file, said := &sink{}, &bytes.Buffer{}
	h := hns.Record(emu.Client(), file, []byte("key"), slog.New(slog.NewTextHandler(said, nil)))
	ask := func() {
		t.Helper()
		if v, err := h.Version(); err != nil || v != hnsemu.WS2025 {
			t.Error(v, err)
		}
	}
	ask()
	one := file.Len()
	file.full = errors.New("no space")
	ask()
	file.full = nil
	ask()
	if file.Len() != one || strings.Count(said.String(), "no space") != 1 {
		t.Errorf("%s\n%s", file.String(), said)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}

	text := file.String()
	if got := calls(t, text+text[len(text)/2:len(text)-1]); len(got) != 1 {
		t.Errorf("%d calls", len(got))
	}
	for _, bad := range []string{"", "{}\n", "no JSON\n", strings.Replace(text, "v1", "v2", 1), text + "x\n"} {
		if _, err := hnsemu.ReadRecording(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
	if _, err := hnsemu.ReadRecording(io.MultiReader(strings.NewReader(text), endless{})); err == nil {
		t.Error("a line without an end is read")
	}

	path := filepath.Join(t.TempDir(), "hns.jsonl")
	for range 2 { // the second replaces the first
		h = hns.RecordIn(path, emu.Client(), slog.New(slog.DiscardHandler))
		ask()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || len(calls(t, string(text))) != 1 {
		t.Errorf("%v\n%s", err, text)
	}
	for _, none := range []string{"", filepath.Join(path, "below")} {
		said.Reset()
		h = hns.RecordIn(none, emu.Client(), slog.New(slog.NewTextHandler(said, nil)))
		if ask(); (said.Len() > 0) != (none != "") {
			t.Errorf("%q: %s", none, said)
		}
	}

	file, said = &sink{}, &bytes.Buffer{}
	h = hns.Record(emu.Client(), file, []byte("key"), slog.New(slog.NewTextHandler(said, nil)))
	emu.Down(true)
	large := hns.LoadBalancer{PortMappings: slices.Repeat([]hns.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80}}, 1<<18)}
	for range 6 {
		_, _ = h.CreateBalancer(large)
	}
	if n := file.Len(); n > hns.MaxRecording || n < hns.MaxRecording/2 || !strings.Contains(said.String(), "64 MiB") {
		t.Errorf("%d bytes\n%s", n, said)
	}
}

// endless is a text without a line's end.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}
