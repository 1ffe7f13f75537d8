// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/conformance"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

const someMark = 1 << 14

// TestCorpus judges the compiler, through the simulator, by every scenario and
// by random worlds.
func TestCorpus(t *testing.T) {
	judge(t, func(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
		return NewSim(objects, host).Decide
	})
}

// TestCorpusInNFT judges the same objects as they are in nftables.
func TestCorpusInNFT(t *testing.T) { judge(t, nftSim) }

func judge(t *testing.T, sim func(map[Key]Value, *model.Host) func(oracle.Packet) oracle.Outcome) {
	conformance.Run(t, conformance.Suite[Key, Value]{
		Mode: "userspace", Compiler: NewCompiler(someMark), Sim: sim, Golden: listing,
	})
}
