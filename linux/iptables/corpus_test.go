// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// TestCorpus judges the compiler, through the simulator, by every scenario and
// by random worlds.
func TestCorpus(t *testing.T) {
	conformance.Run(t, conformance.Suite[Key, Value]{
		Mode:     "iptables",
		Compiler: NewCompiler(Options{}),
		Sim: func(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
			return NewSim(objects, host).Decide
		},
		Golden: listing,
	})
}

// listing renders what a port adds, one rule a line, as iptables-save does. The
// ways through the trees are left out.
func listing(objects map[Key]Value) string {
	var b strings.Builder
	for _, k := range slices.SortedFunc(maps.Keys(objects), compareKeys) {
		if k.Rank == rankBranch {
			continue
		}
		for r := range strings.Lines(objects[k].String()) {
			fmt.Fprintf(&b, "%s %s -A %s %s", k.Family, k.Table, k.Chain, r)
		}
	}
	return b.String()
}
