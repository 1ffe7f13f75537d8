// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

var _ dataplane.Evaluator[Key, Value] = (*Compiler)(nil)

// Evaluate implements dataplane.Evaluator.
func (*Compiler) Evaluate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return NewSim(objects, host).Decide
}

// Text implements dataplane.Evaluator.
func (*Compiler) Text(k Key, v Value) string {
	if k.Rank == rankDisorder {
		return "its rules in another order"
	}
	return strings.TrimSpace(v.String())
}

// Opaque implements dataplane.Evaluator: rules with what tandem never writes match
// nothing in Evaluate.
func (*Compiler) Opaque(k Key, v Value) bool {
	if k.Rank == rankDisorder {
		return true
	}
	for r := range v.All() {
		if r.Unparsed != "" {
			return true
		}
	}
	return false
}
