// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// A large port may take several transactions.
func TestEachWriteOfAChange(t *testing.T) {
	suite().EachWrite(t)
}

// An address passes to another Service. Slots of both policies have the same keys: where the policies
// differ, it takes the one transaction that both have.
func TestEachWriteOfPassing(t *testing.T) { suite().EachWriteOfPassing(t, model.Cluster) }

func suite() conformance.Suite[nft.Key, nft.Value] {
	return conformance.Suite[nft.Key, nft.Value]{
		Mode: "nftables", Compiler: NewCompiler(Options{}),
		Sim: func(objects map[nft.Key]nft.Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
			return nft.NewSim(objects, host).Decide
		},
	}
}
