// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/core/track"
)

// file makes a snapshot of a random world, with something in every part.
func file(seed uint64) *snapshot.File {
	w := conformance.RandomWorld(conformance.NewRand(seed))
	c := config.Default()
	c.NodeName, c.Manifests, c.API.Kubeconfig = "topsecret-node", "/srv/topsecret", "/home/topsecret/config"
	c.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	c.Unused = map[string][]string{"x": {"topsecret"}}
	f := &snapshot.File{
		Header: snapshot.Header{
			Format: snapshot.Format, Version: "v1", System: "linux", Mode: "nftables", At: time.Unix(1, 5).UTC(), Config: c,
			Node:    &model.Node{Name: "topsecret-node", Zone: "topsecret-zone", IPs: []netip.Addr{netip.MustParseAddr("203.0.113.77")}, Where: "/srv/topsecret/node.yaml:1"},
			Machine: model.Machine{Addresses: []model.LocalAddress{{Prefix: netip.MustParsePrefix("203.0.113.77/24")}}, APIServers: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.78:6443")}},
		},
		Services: w.Services, Slices: append(w.Slices, &model.Slice{Name: model.SliceName{Namespace: "ns", Name: "topsecret-x"}, Service: "topsecret", Pods: model.PackPods([]string{"topsecret-0", "topsecret-1"})}),
		CIDRs:    []*model.ServiceCIDR{{Name: "kubernetes", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}},
		Status:   question.Status{Node: "topsecret-node", Source: "https://topsecret.example", Reasons: []string{"topsecret says no"}, Services: []question.Service{{Name: "ns/topsecret", State: "Partial", Frontends: []question.Frontend{{Address: "203.0.113.77:80", Why: "x"}}, Problems: []question.Problem{{Detail: "topsecret"}}}}},
		History:  history.Document{Total: 1, Entries: []history.Entry{{Number: 1, Kind: "Service", Verb: "added", Object: "ns/topsecret", Detail: "topsecret", Sync: &history.Applied{Err: "203.0.113.77: topsecret", Stages: history.Times{Queue: 1}}}}},
		Top:      &question.Top{Mode: "nftables", Services: []question.TopService{{Service: "ns/topsecret", New: 7, Frontends: []question.TopAddress{{Address: "203.0.113.77:80", Proto: "tcp", New: 7}}}}},
		Observed: []dataplane.Difference{{Object: "vip topsecret", State: dataplane.Differs, Found: "203.0.113.77", Record: `{"topsecret":1}`}},
		Checks:   []diagnosis.Check{{ID: "clock", Level: diagnosis.OK, Found: "topsecret"}},
	}
	f.Sort()
	return f
}

func written(t testing.TB, f *snapshot.File) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := snapshot.Write(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What is written is read again, whatever is in it, and written alike.
func TestReadWhatWasWritten(t *testing.T) {
	for seed := range uint64(50) {
		f := file(seed)
		text := written(t, f)
		again, err := snapshot.Read(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if second := written(t, again); !bytes.Equal(text, second) {
			t.Fatalf("seed %d: written differently:\n%s\n%s", seed, text, second)
		}
		if a, b := f.Resolve(), again.Resolve(); !reflect.DeepEqual(ports(a), ports(b)) {
			t.Errorf("seed %d: resolved differently", seed)
		}
	}
}

// Other formats, and fields of a newer tandem, are rejected with what to do.
func TestOtherFormats(t *testing.T) {
	text := string(written(t, file(1)))
	const format = `{"tandemSnapshot":1,`
	for put, want := range map[string]string{
		`{"tandemSnapshot":2,`:              "line 1: format 2: this tandem reads format 1; use the one that made it",
		`{"tandemSnapshot":0,`:              "line 1: format 0: this tandem reads format 1; use the one that made it",
		`{"tandemSnapshot":1,"newField":1,`: `line 1: json: unknown field "newField": read it with the tandem that made it`,
		`{"tandem":1,`:                      "line 1: not a snapshot of tandem",
	} {
		other := strings.Replace(text, format, put, 1)
		if _, err := snapshot.Read(strings.NewReader(other)); other == text || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", put, err, want)
		}
	}
}

func ports(r *snapshot.Result) string {
	text, _ := json.Marshal(r.Ports)
	return string(text)
}

// After any changes, of inputs and of what is known of endpoints, and steps of time, a snapshot means what the node had resolved
// by then: nothing of it depends on a past that is not recorded.
func TestReplayIsWhatTheNodeHad(t *testing.T) {
	parts := map[string]int{}
	for seed := range uint64(30) {
		rng := conformance.NewRand(seed)
		var before conformance.Random
		w := conformance.RandomWorld(rng)
		if seed%2 == 1 {
			w = w.WithRoutes(rng)
		}
		now, tracker := time.Unix(1_700_000_000, 0), track.New()
		tracker.SetClock(func() time.Time { return now })
		node := &model.Node{Name: conformance.NodeName, Zone: "zone-a", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
		for step := range 25 {
			for i, s := range w.Services { // worlds have no slow start
				if rng.IntN(30) == 0 && s.Choice.SlowStart == 0 {
					slow := *s
					slow.Choice.SlowStart = time.Duration(10+rng.IntN(100)) * time.Second
					w.Services[i] = &slow
				}
			}
			w.Feed(tracker, before)
			host := resolve.Host(&w.Config, node, nil, model.Machine{})
			if step == 0 || w.Host != before.Host {
				tracker.SetHost(host)
			}
			if rng.IntN(4) == 0 {
				tracker.SetSuspects(suspectsOf(w.Slices, rng, now))
			}
			if tracker.Flush(); !tracker.Settled(now) {
				t.Fatalf("seed %d, step %d: not settled", seed, step)
			}
			f := &snapshot.File{
				Header:   snapshot.Header{Format: snapshot.Format, Mode: "nftables", At: now, Config: w.Config, Node: node, Suspects: tracker.Suspects()},
				Services: w.Services, Slices: w.Slices, Routes: w.Routes,
			}
			had := &snapshot.Result{Host: host, Services: tracker.Services()}
			for _, s := range had.Services {
				had.Ports = append(had.Ports, s.Ports...)
			}
			f.KeepReady(had.Services)
			f.KeepSlots(had.Ports)
			f.Record(had)
			again, err := snapshot.Read(bytes.NewReader(written(t, f)))
			if err != nil {
				t.Fatal(err)
			}
			if r := again.Resolve(); again.Compare(r) != snapshot.Same {
				t.Fatalf("seed %d, step %d:\n%s\n%s", seed, step, ports(r), ports(had))
			}
			for what, n := range map[string]int{"slots": len(f.Slots), "ready": len(f.Ready), "suspects": len(f.Suspects), "routes": len(f.Routes)} {
				parts[what] += n
			}
			before, w = w, w.Change(rng)
			now = now.Add(time.Duration(rng.IntN(8)) * time.Second)
		}
	}
	t.Log(parts)
	for what, n := range parts {
		if n < 50 {
			t.Errorf("%d %s: the test proves nothing of them", n, what)
		}
	}
}

// suspectsOf are some of the endpoints, of which some answer again.
func suspectsOf(all []*model.Slice, rng *rand.Rand, now time.Time) model.Suspects {
	suspects := model.Suspects{}
	for _, s := range all {
		for _, e := range s.Endpoints {
			switch rng.IntN(5) {
			case 0:
				suspects[e.Addr] = time.Time{}
			case 1:
				suspects[e.Addr] = now.Add(-time.Duration(rng.IntN(12)) * time.Second)
			}
		}
	}
	return suspects
}

// Orders of pools that depend on the past are kept.
func TestSlotsAreKept(t *testing.T) {
	moved := 0
	for seed := range uint64(50) {
		f := file(seed)
		desired := f.Resolve().Ports
		for _, p := range desired {
			for _, pool := range p.Pools() {
				var order []netip.AddrPort
				for i := range pool.Size() {
					order = append(order, pool.Slot(i).Addr)
				}
				if len(order) > 1 && len(order) != model.MaglevSlots { // those are not ours to order
					slices.Reverse(order)
					pool.Reslot(order)
					moved++
				}
			}
		}
		f.KeepSlots(desired)
		again, err := snapshot.Read(bytes.NewReader(written(t, f)))
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := json.Marshal(desired); ports(again.Resolve()) != string(want) {
			t.Fatalf("seed %d:\n%s\n%s", seed, ports(again.Resolve()), want)
		}
	}
	if moved == 0 {
		t.Error("no pool had two endpoints: the test proves nothing")
	}
}

// A redacted snapshot has no name and no address of the original, and means the same
// but for these.
func TestRedact(t *testing.T) {
	for seed := range uint64(50) {
		plain, f := file(seed), file(seed)
		f.Redact([]byte("key"))
		text := string(written(t, f))
		if f.Machine.Salt != 0 {
			t.Fatal("the machine's salt is in")
		}
		secrets := []string{"topsecret", "203.0.113.77", "203.0.113.78"}
		for _, s := range plain.Services {
			for _, ip := range append(append(s.ClusterIPs, s.ExternalIPs...), s.LoadBalancerIPs...) {
				secrets = append(secrets, `"`+ip.String()+`"`)
			}
			secrets = append(secrets, fmt.Sprintf("%q:%q", "Name", s.Name.Name))
		}
		for _, s := range secrets {
			if strings.Contains(text, s) {
				t.Fatalf("seed %d: %s is in\n%s", seed, s, text)
			}
		}
		again, err := snapshot.Read(strings.NewReader(text))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if e := again.History.Entries[0]; e.Sync.Stages.Queue != 1 || again.Compare(again.Resolve()) != snapshot.Same {
			t.Errorf("seed %d: stages %+v, or another meaning than is recorded", seed, e.Sync.Stages)
		}
		before, after := shape(plain.Resolve()), shape(again.Resolve())
		if before != after {
			t.Errorf("seed %d: another meaning: %s, %s", seed, before, after)
		}
		if !reflect.DeepEqual(plain.Services, file(seed).Services) {
			t.Errorf("seed %d: the original was changed", seed)
		}
		other := file(seed)
		other.Redact([]byte("key"))
		if string(written(t, other)) != text {
			t.Error("the same key redacts differently")
		}
		other = file(seed)
		other.Redact([]byte("another"))
		if string(written(t, other)) == text {
			t.Error("another key redacts alike")
		}
	}
}

// The feature gates that policy follows are no secrets: without them a redacted snapshot would mean something else.
func TestRedactKeepsFeatureGates(t *testing.T) {
	f := file(1)
	f.Config.Mode, f.Config.NodePorts, f.Config.Gates = config.NFTables, config.NodePorts{Localhost: true, Primary: true}, config.Gates{config.GateLocalhost + "=false"}
	f.Config.Complete()
	before := f.Resolve().Host.NodePorts.Loopback
	f.Redact([]byte("key"))
	again, err := snapshot.Read(bytes.NewReader(written(t, f)))
	if err != nil {
		t.Fatal(err)
	}
	if after := again.Resolve().Host.NodePorts.Loopback; before != [2]bool{} || after != before {
		t.Errorf("node ports on loopback addresses: %v before, %v after", before, after)
	}
}

// shape counts what ports look like, without their names and addresses.
func shape(r *snapshot.Result) string {
	fronts, ends := [4]int{}, map[string]int{}
	for _, p := range r.Ports {
		for _, f := range p.Frontends {
			fronts[f.Kind]++
			for _, act := range f.On {
				n := 0
				if act.Pool != nil {
					n = len(act.Pool.Endpoints)
				}
				ends[fmt.Sprint(act.Verdict, act.SNAT, act.Why, n)]++
			}
		}
	}
	return fmt.Sprint(len(r.Ports), fronts, ends)
}

// What is no snapshot, of another version, cut short, or not valid is rejected, and it
// is said where.
func TestRefuse(t *testing.T) {
	good := string(written(t, file(1)))
	lines := strings.SplitAfter(strings.TrimSuffix(good, "\n"), "\n")
	for name, c := range map[string]struct{ text, want string }{
		"empty":                             {"", "end record is missing"},
		"other text":                        {"hello\n", "not a snapshot"},
		"another format":                    {strings.Replace(good, `"tandemSnapshot":1`, `"tandemSnapshot":2`, 1), "format 2"},
		"unknown field":                     {strings.Replace(good, `"redacted"`, `"x"`, 1) + "", ""},
		"cut short":                         {strings.Join(lines[:len(lines)-1], ""), "end record is missing"},
		"a line is gone":                    {strings.Join(append(append([]string{}, lines[:2]...), lines[3:]...), ""), "the end record counts"},
		"more behind it":                    {good + "{}\n", "data after the end"},
		"an empty line":                     {lines[0] + "{}\n", "line 2: an empty line"},
		"an unknown kind":                   {lines[0] + `{"wish":1}` + "\n", "line 2: json: unknown field"},
		"a bad address":                     {lines[0] + `{"service":{"Name":{"Namespace":"a","Name":"b"},"ClusterIPs":[""]}}` + "\n" + `{"end":{"lines":2}}` + "\n", "service a/b"},
		"address twice":                     {lines[0] + `{"service":{"ExternalIPs":["192.0.2.1","192.0.2.1"]}}` + "\n" + `{"end":{"lines":2}}` + "\n", "twice"},
		"a bad protocol":                    {lines[0] + `{"service":{"Ports":[{"Proto":200,"Port":1}]}}` + "\n" + `{"end":{"lines":2}}` + "\n", "not valid"},
		"a bad scheduler":                   {lines[0] + `{"service":{"Name":{"Namespace":"a","Name":"b"},"Choice":{"Scheduler":200}}}` + "\n" + `{"end":{"lines":2}}` + "\n", "service a/b: scheduler 200"},
		"a negative slow start":             {lines[0] + `{"service":{"Name":{"Namespace":"a","Name":"b"},"Choice":{"SlowStart":-1}}}` + "\n" + `{"end":{"lines":2}}` + "\n", "slow start -1ns"},
		"a slow start of days":              {lines[0] + `{"service":{"Name":{"Namespace":"a","Name":"b"},"Choice":{"SlowStart":86400000000000}}}` + "\n" + `{"end":{"lines":2}}` + "\n", "slow start 24h0m0s"},
		"a spill-over below the fair share": {lines[0] + `{"service":{"Name":{"Namespace":"a","Name":"b"},"Choice":{"Spill":{"Above":0.5}}}}` + "\n" + `{"end":{"lines":2}}` + "\n", "spill-over above 0.5"},
		"a negative floor":                  {lines[0] + `{"service":{"Name":{"Namespace":"a","Name":"b"},"Choice":{"Spill":{"Floor":-1}}}}` + "\n" + `{"end":{"lines":2}}` + "\n", "floor -1"},
	} {
		_, err := snapshot.Read(strings.NewReader(c.text))
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Whatever is read does not panic, neither then nor when it is resolved.
func FuzzRead(f *testing.F) {
	for seed := range uint64(3) {
		f.Add(written(f, file(seed)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<14 {
			return
		}
		file, err := snapshot.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		file.Resolve()
		file.Redact([]byte("key"))
		if again, err := snapshot.Read(bytes.NewReader(written(t, file))); err != nil {
			t.Fatalf("redacted, it is refused: %v", err)
		} else {
			again.Resolve()
		}
	})
}

// What a few bytes each make of a snapshot, which strangers send, is refused before it is made.
func TestEmptyValuesAreRefused(t *testing.T) {
	const size = 14 << 20
	many := func(of string) string { return "[" + of + strings.Repeat(","+of, size/(len(of)+1)) + "]" }
	for name, line := range map[string]string{
		"endpoints": `{"slice":{"Endpoints":` + many("{}") + `}}`,
		"null":      `{"slice":{"Endpoints":` + many("null") + `}}`,
		"frontends": `{"serves":{"name":"a/b","frontends":` + many("{}") + `}}`,
		"spaces":    `{"status":{"problems":` + many("{ }") + `}}`,
	} {
		text := `{"tandemSnapshot":1,"version":"v1","mode":"nftables"}` + "\n" + line + "\n" + `{"end":{"lines":2}}` + "\n"
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := snapshot.Read(strings.NewReader(text))
		runtime.ReadMemStats(&after)
		made := after.TotalAlloc - before.TotalAlloc
		if err == nil || !strings.Contains(err.Error(), "line 2: too many empty values") || made > 100<<20 {
			t.Errorf("%s: %d MiB for %d bytes: %v", name, made>>20, len(text), err)
		}
	}
}
