// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// TestCorpus judges what listeners can decide, by every scenario: which clients are served,
// and by which endpoints. Refusal, silence and foreign ports of addresses are
// the system's.
func TestCorpus(t *testing.T) {
	judged := 0
	conformance.EachStep(t, func(s *conformance.Scenario, step conformance.Step, host *model.Host, ports []*model.Port) {
		c := NewCompiler(Adapter{})
		objects, gaps := dataplane.Compile(c, host, ports)
		for _, row := range step.Packets {
			p := s.Oracle(host, row)
			want := oracle.Decide(host, ports, p)
			byIface := host.Pods.Interface != "" || host.Pods.Prefix != ""
			if p.Proto == model.SCTP || byIface && slices.ContainsFunc(gaps[want.Port], func(g model.Gap) bool { return g.Detail == noIface }) {
				continue
			}
			judged++
			got := c.Evaluate(objects, host)(p)
			if served := want.Fate == oracle.Forward; served != (got.Fate == oracle.Forward) {
				t.Errorf("%s:%d: %s: want %s, got %s", s.File, row.Line, row, want.Fate, got.Fate)
			} else if served && !conformance.Masked(want).Same(conformance.Masked(got)) {
				t.Errorf("%s:%d: %s: %s", s.File, row.Line, row, conformance.Diff(conformance.Masked(want), conformance.Masked(got)))
			}
		}
	})
	t.Logf("corpus: userspace on an adapter: %d rows", judged)
}
