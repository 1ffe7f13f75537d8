// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/nft"
)

var _ dataplane.Evaluator[nft.Key, nft.Value] = (*Compiler)(nil)

// Evaluate implements dataplane.Evaluator.
func (*Compiler) Evaluate(objects map[nft.Key]nft.Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return nft.NewSim(objects, host).Decide
}

// Text implements dataplane.Evaluator.
func (*Compiler) Text(k nft.Key, v nft.Value) string { return nft.Describe(k, v) }

// Opaque implements dataplane.Evaluator: of a chain, the kernel's rules are compared
// with ours and not decoded.
func (*Compiler) Opaque(k nft.Key, v nft.Value) bool { return nft.Opaque(k, v) }
