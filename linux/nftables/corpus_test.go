// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// TestCorpus judges the compiler, through the simulator, by every scenario and
// by random worlds.
func TestCorpus(t *testing.T) {
	conformance.Run(t, conformance.Suite[nft.Key, nft.Value]{
		Mode:     "nftables",
		Compiler: NewCompiler(Options{}),
		Sim: func(objects map[nft.Key]nft.Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
			return nft.NewSim(objects, host).Decide
		},
		Golden: listing,
	})
}

// listing renders objects one a line: what a port adds to the tables. Of the slots
// of large tables it has the first few.
func listing(objects map[nft.Key]nft.Value) string {
	const few = 64
	var b strings.Builder
	for _, k := range table.Sorted(objects) {
		v := objects[k]
		switch k.Kind {
		case nft.KindElement:
			if k.Slot%bankSize >= few {
				continue
			}
			fmt.Fprintf(&b, "%s %s { %s }\n", nft.FamilyName(k.Family), k.Set, k.Text(v))
		case nft.KindChain:
			fmt.Fprintf(&b, "%s chain %s\n", nft.FamilyName(k.Family), k.Name())
			for _, r := range v.Body.Chain.Rules {
				fmt.Fprintf(&b, "  %s\n", r.Text(k.Family))
			}
		case nft.KindSet:
			fmt.Fprintf(&b, "%s set %s\n", nft.FamilyName(k.Family), k.Name())
		}
	}
	return b.String()
}
