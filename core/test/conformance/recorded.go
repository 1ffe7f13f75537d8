// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// mostRecorded bounds the packets of a step that are traced, and the differences in which.
const mostRecorded = 64

// recorded takes what a step has changed for changes by another program: with the objects
// of the step before recorded as differences, a packet fares as it did by those.
func (s Suite[K, V]) recorded(t *testing.T, scenario *Scenario, step Step, host *model.Host, ports []*model.Port, found, want map[K]V, sum *tally) {
	if found == nil || s.Compiler.Evaluate(nil, host) == nil {
		return
	}
	differ := differences(s.Compiler, want, found)
	if len(differ) == 0 || len(differ) > mostRecorded {
		return
	}
	plan := dataplane.PlanOf(s.Compiler, host, ports, func(map[K]V) string { return "" })
	sim := s.Sim(found, host)
	for _, row := range step.Packets[:min(len(step.Packets), mostRecorded)] {
		p := scenario.Oracle(host, row)
		got, err := plan.Trace(ports, p, differ)
		if err != nil {
			t.Errorf("%s:%d: %v", scenario.File, row.Line, err)
			return
		}
		if len(got.Opaque) > 0 { // a chain of which only a digest is read
			continue
		}
		sum.recorded++
		had := sim(p)
		sortTargets(had.Endpoints)
		sortTargets(got.Installed.Endpoints)
		if d := Diff(had, got.Installed); d != "" {
			t.Errorf("%s:%d: %s: by %d recorded differences: %s", scenario.File, row.Line, row, len(differ), d)
		}
	}
}

// differences records how what was found differs from what is wanted.
func differences[K comparable, V any](c dataplane.Compiler[K, V], want, found map[K]V) (all []dataplane.Difference) {
	for k, v := range want {
		d := dataplane.Difference{Object: fmt.Sprint(k), State: dataplane.Differs}
		has, there := found[k]
		switch {
		case !there:
			d.State, d.Record = dataplane.Missing, dataplane.Record(c, k, v)
		case c.Equal(v, has):
			continue
		default:
			d.Record = dataplane.Record(c, k, has)
		}
		all = append(all, d)
	}
	for k, v := range found {
		if _, wanted := want[k]; !wanted {
			all = append(all, dataplane.Difference{Object: fmt.Sprint(k), State: dataplane.Unexpected, Record: dataplane.Record(c, k, v)})
		}
	}
	slices.SortFunc(all, func(a, b dataplane.Difference) int { return strings.Compare(a.Object, b.Object) })
	return all
}
