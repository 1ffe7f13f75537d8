// SPDX-License-Identifier: Apache-2.0

package ipvs

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
		Mode:     "ipvs",
		Compiler: NewCompiler(Options{}),
		Sim: func(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
			return NewSim(Options{}, objects, host).Decide
		},
		Golden: listing,
	})
}

// listing renders what ports add, one object a line.
func listing(objects map[Key]Value) string {
	t := text{marks: fwmarksOf(bitsFor(0), objects), objects: objects}
	keys := slices.SortedFunc(maps.Keys(objects), compareKeys)
	t.dests = destinations(keys, objects)
	var b strings.Builder
	for _, k := range keys {
		switch k.Kind {
		case kindServer:
			b.WriteString(t.server(k, objects[k]))
		case kindEntry:
			b.WriteString(t.set(k, objects[k]))
		case kindAddress:
			fmt.Fprintf(&b, "address %s\n", k.Dst.Addr())
		}
	}
	return b.String()
}
