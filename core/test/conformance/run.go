// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Run tests a data plane with every scenario and with random worlds. Packets that
// differ but are covered by a Gap are logged.
func Run[K comparable, V any](t *testing.T, s Suite[K, V]) {
	dir := s.Dir
	if dir == "" {
		dir = Corpus(t)
	}
	scenarios, err := Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	var sum tally
	for _, scenario := range scenarios {
		t.Run(scenario.Name, func(t *testing.T) { s.scenario(t, scenario, filepath.Join(dir, scenario.File), &sum) })
	}
	t.Logf("corpus: %s: %d scenarios, %s", s.Mode, len(scenarios), &sum)
	var worlds tally
	t.Run("random", func(t *testing.T) { s.random(t, &worlds) })
	t.Logf("corpus: %s: random worlds, %s", s.Mode, &worlds)
	t.Run("large", s.large)
}

// EachStep calls f with every step of every scenario of the corpus, and the resolved
// host and ports.
func EachStep(t testing.TB, f func(s *Scenario, step Step, host *model.Host, ports []*model.Port)) {
	t.Helper()
	scenarios, err := Load(os.DirFS(Corpus(t)))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		world := NewWorld(s)
		for _, step := range s.Steps {
			host, ports, err := world(step)
			if err != nil {
				t.Fatal(err)
			}
			f(s, step, host, ports)
		}
	}
}

// Corpus returns the folder of the scenarios, found from the working directory
// of the test upwards.
func Corpus(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return filepath.Join(dir, "ci", "scenarios")
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("no go.mod above the working directory (%v)", err)
	return ""
}

func (s Suite[K, V]) scenario(t *testing.T, scenario *Scenario, file string, sum *tally) {
	world := NewWorld(scenario)
	var before map[K]V
	for _, step := range scenario.Steps {
		host, ports, err := world(step)
		if err != nil {
			t.Fatalf("%s: %s: %v", scenario.File, step.Title, err)
		}
		for _, row := range step.Packets {
			for _, wrong := range JudgeRow(scenario, host, ports, row) {
				t.Errorf("%s:%d: %s: %s", scenario.File, row.Line, row, wrong)
			}
		}
		out, err := compile(s.Compiler, host, ports)
		if err != nil {
			t.Errorf("%s: %s: %v", scenario.File, step.Title, err)
		}
		s.ranges(t, scenario.File+": "+step.Title, host, out.objects)
		trial := s.trial(t, host, ports, out)
		for _, row := range step.Packets {
			trial.judge(fmt.Sprintf("%s:%d: %s", scenario.File, row.Line, row), scenario.Oracle(host, row))
		}
		for _, p := range Probes(host, ports) {
			trial.judge(fmt.Sprintf("%s: %s: probe %s", scenario.File, step.Title, Show(p)), p)
		}
		trial.report(scenario.File+": "+step.Title, sum)
		trial.list(scenario.File + ": " + step.Title)
		sum.rows += len(step.Packets)
		s.golden(t, out.ported, step, file)
		s.recorded(t, scenario, step, host, ports, before, out.objects, sum)
		before = out.objects
	}
}

// JudgeRow compares a row of a packet table with the reference semantics and returns
// the difference.
func JudgeRow(scenario *Scenario, host *model.Host, ports []*model.Port, row Packet) (wrong []string) {
	want := row.Expect.Outcome() // without shares only those that may be reached are judged
	got := oracle.Decide(host, ports, scenario.Oracle(host, row))
	if d := Diff(want, got); d != "" {
		return []string{"the table and the policy differ: " + d + " (" + got.Why.String() + ")"}
	}
	if len(want.Endpoints) > 1 {
		for _, p := range ports {
			if p.ID == got.Port && row.Expect.SessionAffinity != (p.SessionAffinity > 0) {
				wrong = append(wrong, fmt.Sprintf("affinity in the table: %t, in the policy: %t", row.Expect.SessionAffinity, p.SessionAffinity > 0))
			}
		}
	}
	return wrong
}

func (s Suite[K, V]) golden(t *testing.T, objects map[K]V, step Step, file string) {
	if s.Golden == nil {
		return
	}
	got := s.Golden(objects)
	if got != "" && got[len(got)-1] != '\n' {
		got += "\n"
	}
	if *updating {
		if err := update(file, step.Number, s.Mode, got); err != nil {
			t.Error(err)
		}
		return
	}
	if want := step.Want[s.Mode]; want != got {
		t.Errorf("%s: %s: golden of %s differs (rewrite with -update):\n%s",
			filepath.Base(file), step.Title, s.Mode, lineDiff(want, got))
	}
}
