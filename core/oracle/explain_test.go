// SPDX-License-Identifier: Apache-2.0

package oracle_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// For every row of the corpus and every probe beside it, an explanation has the
// outcome of Decide, the one that the table expects, and steps that state just that.
func TestExplainIsDecide(t *testing.T) {
	rows, probes := 0, 0
	conformance.EachStep(t, func(s *conformance.Scenario, step conformance.Step, host *model.Host, ports []*model.Port) {
		check := func(what string, p oracle.Packet) oracle.Explanation {
			e := oracle.Explain(host, ports, p)
			if want := oracle.Decide(host, ports, p); !e.Outcome.Same(want) || e.Outcome.Why != want.Why || e.Outcome.Port != want.Port {
				t.Errorf("%s: explained as %+v, decided as %+v", what, e.Outcome, want)
			}
			if wrong := inconsistent(e); wrong != "" {
				t.Errorf("%s: %s: %+v", what, wrong, e.Steps)
			}
			return e
		}
		for _, row := range step.Packets {
			rows++
			what := fmt.Sprintf("%s:%d: %s", s.File, row.Line, row)
			if e := check(what, s.Oracle(host, row)); !e.Outcome.Same(row.Expect.Outcome()) {
				t.Errorf("%s: explained as %+v, expected %s", what, e.Outcome, row.Expect)
			}
		}
		for _, p := range conformance.Probes(host, ports) {
			probes++
			check(s.File+": "+conformance.Show(p), p)
		}
	})
	t.Logf("%d rows and %d probes explained", rows, probes)
	if rows < 100 || probes < rows {
		t.Error("the corpus was not read")
	}
}

// inconsistent reports what the steps of an explanation and its outcome do not share.
func inconsistent(e oracle.Explanation) string {
	result := func(of oracle.About) (results []string) {
		for _, s := range e.Steps {
			if s.Why == "" || s.Result == "" {
				results = append(results, "a step without a reason")
			}
			if s.About == of {
				results = append(results, s.Result)
			}
		}
		return results
	}
	if got := result(oracle.AboutOrigin); !slices.Equal(got, []string{e.Origin.String()}) {
		return fmt.Sprintf("origin %v", got)
	}
	fate := slices.Concat(result(oracle.AboutPolicy), result(oracle.AboutRanges))
	fate = slices.DeleteFunc(fate, func(s string) bool { return s == "allowed" })
	want := e.Outcome.Fate.String()
	if e.Outcome.Fate == oracle.Forward {
		want = model.Balance.String()
	}
	if !slices.Equal(fate, []string{want}) {
		return fmt.Sprintf("fate %v, want %s", fate, want)
	}
	if (e.Frontend == nil) != slices.Contains(result(oracle.AboutFrontend), "none") {
		return "the frontend"
	}
	if got := result(oracle.AboutEndpoints); (e.Outcome.Fate == oracle.Forward) != slices.Equal(got, []string{fmt.Sprint(len(e.Outcome.Endpoints))}) {
		return fmt.Sprintf("%v endpoints", got)
	}
	hidden := slices.ContainsFunc(e.Outcome.Endpoints, func(t oracle.Target) bool { return t.SNAT })
	if hidden && !slices.Contains(result(oracle.AboutSNAT), "SNAT") {
		return "SNAT is not shown"
	}
	return ""
}
