// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

var _ dataplane.Evaluator[Key, Value] = (*Compiler)(nil)

// Evaluate implements dataplane.Evaluator.
func (c *Compiler) Evaluate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return NewSim(c.options, objects, host).Decide
}

// Text implements dataplane.Evaluator.
func (*Compiler) Text(k Key, v Value) string {
	switch k.Kind {
	case KindChain, KindJump:
		return strings.TrimSpace(v.Rules.String())
	case KindServer:
		text := "scheduler " + v.Scheduler
		if v.Timeout > 0 {
			text += fmt.Sprintf(", persistent %d s", v.Timeout)
		}
		return text
	case KindEntry:
		if v.Mark != (Mark{}) {
			return "mark " + v.Mark.String()
		}
	}
	return ""
}

// Opaque implements dataplane.Evaluator: rules with what tandem never writes match
// nothing in Evaluate.
func (*Compiler) Opaque(_ Key, v Value) bool {
	for r := range v.Rules.All() {
		if r.Unparsed != "" {
			return true
		}
	}
	return false
}
