// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"
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
	switch k.Kind {
	case KindChain, KindJump:
		if v.Rules.Len() == 0 {
			return "rules that are not ours, or in another order"
		}
		return strings.TrimSpace(v.Rules.String())
	case KindEntry:
		return v.To.String()
	case KindRelay:
		if v.Policy != nil {
			return fmt.Sprintf("relay to %v", v.Policy.On[model.FromOutside].Endpoints)
		}
	case KindUnexpected:
		return k.Rest
	}
	return ""
}

// String says what an entry does.
func (t Target) String() string {
	switch t.Do {
	case ToRelay:
		return fmt.Sprintf("to relay %s", t.Relay)
	case Reject:
		return "refuse"
	case Drop:
		return "drop"
	case Accept:
		return "allow"
	}
	return "not ours"
}

// Opaque implements dataplane.Evaluator: rules that tandem does not write are not
// evaluated.
func (*Compiler) Opaque(k Key, v Value) bool {
	return k.Kind == KindUnexpected || k.Kind == KindEntry && v.To.Do == unknown ||
		(k.Kind == KindChain || k.Kind == KindJump) && v.Rules.Len() == 0
}
