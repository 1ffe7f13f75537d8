// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// What trace says of objects, the emulator's virtual switch does with the load
// balancers that they become, for every packet of the corpus and of its probes.
func TestEvaluateIsTheSwitch(t *testing.T) {
	o := hns.Newest()
	for _, c := range []struct {
		version hns.Version
		kind    string
		options hns.Options
	}{{hnsemu.WS2025, hns.TypeL2Bridge, o}, {hnsemu.WS2019, hns.TypeL2Bridge, hns.Options{}}} {
		compiler := hns.NewCompiler(c.options)
		programmed := sim(t, c.version, c.kind, compiler)
		packets := 0
		conformance.EachStep(t, func(s *conformance.Scenario, step conformance.Step, host *model.Host, ports []*model.Port) {
			objects, _ := dataplane.Compile(compiler, host, ports)
			vfp, evaluate := programmed(objects, host), compiler.Evaluate(objects, host)
			for _, p := range conformance.Probes(host, ports) {
				packets++
				if d := conformance.Diff(sorted(vfp(p)), evaluate(p)); d != "" {
					t.Errorf("%s: %s: %s: %s", s.File, step.Title, conformance.Show(p), d)
				}
			}
		})
		t.Logf("HNS %s: %d packets", c.version, packets)
	}
}

// sorted returns an outcome with its endpoints in address order.
func sorted(o oracle.Outcome) oracle.Outcome {
	slices.SortFunc(o.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
	return o
}
