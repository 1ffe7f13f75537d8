package nftables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/conformance"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// TestCorpus judges the compiler, through the simulator, by every scenario and
// by random worlds.
func TestCorpus(t *testing.T) {
	conformance.Run(t, conformance.Suite[Key, Value]{
		Mode:     "nftables",
		Compiler: NewCompiler(Options{}),
		Sim: func(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
			return NewSim(objects, host).Decide
		},
		Golden: listing,
	})
}

// listing renders objects one a line: what a port adds to the tables.
func listing(objects map[Key]Value) string {
	var b strings.Builder
	for _, k := range slices.SortedFunc(maps.Keys(objects), compareKeys) {
		v := objects[k]
		switch k.Kind {
		case KindElement:
			fmt.Fprintf(&b, "%s %s { %s%s }\n", familyName(k.Family), k.Set, k.elementText(), valueText(k, v))
		case KindChain:
			fmt.Fprintf(&b, "%s chain %s\n", familyName(k.Family), k.Rest)
			for _, r := range v.Body.Chain.Rules {
				fmt.Fprintf(&b, "  %s\n", r.text(k.Family))
			}
		case KindSet:
			fmt.Fprintf(&b, "%s set %s\n", familyName(k.Family), k.Rest)
		}
	}
	return b.String()
}
