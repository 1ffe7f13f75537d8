// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/fields"
	"github.com/tandem-proxy/tandem/core/test/table"
)

func tableSuite() Suite[table.Key, table.Value] {
	return Suite[table.Key, table.Value]{Mode: "table", Compiler: table.Compiler{}, Sim: table.Simulate}
}

// incapable declares a gap for every port.
type incapable struct {
	table.Compiler
	gap model.Gap
}

func (c incapable) Port(host *model.Host, port *model.Port, emit func(table.Key, table.Value)) []model.Gap {
	return append(c.Compiler.Port(host, port, emit), c.gap)
}

// notes records what a trial reports.
type notes struct{ errors, logs []string }

func (n *notes) Errorf(format string, args ...any) {
	n.errors = append(n.errors, fmt.Sprintf(format, args...))
}
func (n *notes) Log(args ...any) { n.logs = append(n.logs, fmt.Sprint(args...)) }

// TestSuite runs the whole suite over a data plane that is right.
func TestSuite(t *testing.T) {
	s := tableSuite()
	s.Dir = "testdata"
	Run(t, s)
}

// TestCorpus compares the packet tables with the policy, without a data plane.
func TestCorpus(t *testing.T) {
	all, err := Load(os.DirFS(Corpus(t)))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, scenario := range all {
		t.Run(scenario.Name, func(t *testing.T) {
			world := NewWorld(scenario)
			for _, step := range scenario.Steps {
				host, ports, err := world(step)
				if err != nil {
					t.Fatalf("%s: %s: %v", scenario.File, step.Title, err)
				}
				for _, row := range step.Packets {
					rows++
					for _, wrong := range JudgeRow(scenario, host, ports, row) {
						t.Errorf("%s:%d: %s: %s", scenario.File, row.Line, row, wrong)
					}
				}
			}
		})
	}
	t.Logf("corpus: policy: %d scenarios, %d rows", len(all), rows)
}

// richWorld returns a random world with pools of several endpoints, some of
// which are their own clients, and with refusals.
func richWorld() (*model.Host, []*model.Port) {
	for seed := uint64(0); ; seed++ {
		w := RandomWorld(NewRand(seed))
		ports := w.Ports()
		several, hairpin, rejects := false, false, false
		for _, p := range Probes(w.Host, ports) {
			o := oracle.Decide(w.Host, ports, p)
			several, rejects = several || len(o.Endpoints) > 1, rejects || o.Fate == oracle.Reject
			hairpin = hairpin || len(o.Endpoints) > 0 && o.Endpoints[0].Addr.Addr() == p.Src
		}
		if several && hairpin && rejects {
			return w.Host, ports
		}
	}
}

func TestTrialFindsMistakes(t *testing.T) {
	host, ports := richWorld()
	for name, broken := range map[string]func(p oracle.Packet, o oracle.Outcome) oracle.Outcome{
		"all pass": func(oracle.Packet, oracle.Outcome) oracle.Outcome { return oracle.Outcome{} },
		"one endpoint short": func(_ oracle.Packet, o oracle.Outcome) oracle.Outcome {
			if len(o.Endpoints) > 1 {
				o.Endpoints = o.Endpoints[1:]
			}
			return o
		},
		"no hairpin": func(p oracle.Packet, o oracle.Outcome) oracle.Outcome {
			for i, e := range o.Endpoints {
				if e.Addr.Addr() == p.Src {
					o.Endpoints[i].SNAT = false
				}
			}
			return o
		},
		"drop for reject": func(_ oracle.Packet, o oracle.Outcome) oracle.Outcome {
			if o.Fate == oracle.Reject {
				o.Fate = oracle.Drop
			}
			return o
		},
	} {
		s := tableSuite()
		s.Sim = func(objects map[table.Key]table.Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
			right := table.Simulate(objects, host)
			return func(p oracle.Packet) oracle.Outcome { return broken(p, right(p)) }
		}
		if n := try(t, s, host, ports); len(n.errors) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
	if n := try(t, tableSuite(), host, ports); len(n.errors) != 0 {
		t.Errorf("nothing is wrong, but: %q", n.errors)
	}
}

func try(t *testing.T, s Suite[table.Key, table.Value], host *model.Host, ports []*model.Port) *notes {
	t.Helper()
	out, err := compile(s.Compiler, host, ports)
	if err != nil {
		t.Fatal(err)
	}
	n := &notes{}
	tr := s.trial(n, host, ports, out)
	for _, p := range Probes(host, ports) {
		tr.judge("probe "+Show(p), p)
	}
	tr.report("world", &tally{})
	tr.list("world")
	return n
}

func TestGapsExcuseTheirFrontOnly(t *testing.T) {
	host, ports := richWorld()
	front := ports[0].Frontends[0].At
	s := tableSuite()
	s.Sim = func(objects map[table.Key]table.Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
		right := table.Simulate(objects, host)
		return func(p oracle.Packet) oracle.Outcome {
			if p.Dst == front && p.Proto == ports[0].ID.Proto {
				return oracle.Outcome{Fate: oracle.Pass}
			}
			return right(p)
		}
	}
	if n := try(t, s, host, ports); len(n.errors) == 0 {
		t.Error("the difference was not found without a gap")
	}
	s.Compiler = incapable{gap: model.Gap{Frontend: front, Detail: "cannot"}}
	n := try(t, s, host, ports)
	if len(n.errors) != 0 {
		t.Errorf("the gap does not excuse: %q", n.errors)
	}
	if len(n.logs) != 1 || !strings.Contains(n.logs[0], front.String()+": cannot") {
		t.Errorf("the gap is not listed: %q", n.logs)
	}
	s.Compiler = incapable{gap: model.Gap{Frontend: netip.AddrPortFrom(front.Addr(), front.Port()+1), Detail: "cannot"}}
	if n := try(t, s, host, ports); len(n.errors) == 0 {
		t.Error("a gap of another front excuses")
	}
}

func TestEqualSeedsMakeEqualWorlds(t *testing.T) {
	kinds, origins := map[model.Kind]int{}, map[oracle.Fate]int{}
	for seed := range uint64(50) {
		a, b := RandomWorld(NewRand(seed)), RandomWorld(NewRand(seed))
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d makes two worlds", seed)
		}
		ports := a.Ports()
		for _, p := range Probes(a.Host, ports) {
			o := oracle.Decide(a.Host, ports, p)
			origins[o.Fate]++
			kinds[o.Kind]++
		}
	}
	if len(kinds) != 4 || len(origins) != 4 {
		t.Errorf("not everything happens: %v %v", kinds, origins)
	}
	t.Logf("probes by fate %v, by kind %v", origins, kinds)
}

func TestDiff(t *testing.T) {
	outcome := func(text string) oracle.Outcome {
		e, err := parseExpect(strings.Fields(text), netip.IPv4Unspecified())
		if err != nil {
			t.Fatal(err)
		}
		return e.Outcome()
	}
	for _, test := range []struct{ want, got, diff string }{
		{"1.1.1.1:1 1.1.1.2:1", "1.1.1.2:1 1.1.1.1:1", ""},
		{"reject", "drop", "want reject, got drop"},
		{"1.1.1.1:1", "pass", "want 1.1.1.1:1, got pass"},
		{"1.1.1.1:1", "1.1.1.1:1 snat", "1.1.1.1:1 sees the node, not the client"},
		{"1.1.1.1:1/snat 1.1.1.2:1", "1.1.1.1:1 1.1.1.3:1", "1.1.1.1:1 sees the client, not the node; 1.1.1.2:1 is not reached; 1.1.1.3:1 must not be reached"},
	} {
		if d := Diff(outcome(test.want), outcome(test.got)); d != test.diff {
			t.Errorf("%s, %s: got %q, want %q", test.want, test.got, d, test.diff)
		}
	}
}

// TestGoldensOfASuite writes goldens with -update, and then compares with them.
func TestGoldensOfASuite(t *testing.T) {
	text, err := os.ReadFile("testdata/basics.txtar")
	if err != nil {
		t.Fatal(err)
	}
	s := tableSuite()
	s.Golden, s.Dir, s.Worlds = table.Text, t.TempDir(), 1
	file := filepath.Join(s.Dir, "basics.txtar")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	before := *updating
	t.Cleanup(func() { *updating = before })
	for _, *updating = range []bool{true, false} {
		Run(t, s)
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(written), string(text)) || !strings.Contains(string(written), "\n-- 3/want/table --\n") {
		t.Errorf("the file is now\n%s", written)
	}
}

// A field that no random world sets is tested by no property.
func TestRandomWorldsVaryEveryField(t *testing.T) {
	var services []*model.Service
	var slices []*model.Slice
	for seed := range uint64(300) {
		w := RandomWorld(NewRand(seed))
		services, slices = append(services, w.Services...), append(slices, w.Slices...)
	}
	// What depends on time is of core/track's own tests.
	fields.Varied(t, services, "Choice.SlowStart", "Version", "Where")
	fields.Varied(t, slices, "Endpoints.Warm", "Triggered", "Version", "Where")
}
