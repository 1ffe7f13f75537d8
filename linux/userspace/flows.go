// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Connection tracking sends all datagrams of a flow to the target of the first one.
// When an entry's target changes, such flows are stale. A change of endpoints makes
// none stale, since the target is the relay.

// hasFlows reports whether an entry has conntrack entries that outlive its changes:
// those of UDP.
func hasFlows(k Key) bool {
	return k.Kind == kindEntry && k.Proto == model.UDP && k.Chain != chainGuard
}

// staleFlows returns the flows that ops make stale, given the rules before the ops.
// Which of them to keep is known only when relays listen.
func staleFlows(ops []ledger.Op[Key, Value], rules map[Key]installed) (fronts []flows.Match) {
	for _, op := range ops {
		switch {
		case !hasFlows(op.Key):
		case op.Verb == ledger.Delete:
			fronts = append(fronts, endedFlows(op.Key, rules[op.Key].port))
		default:
			fronts = append(fronts, flows.Match{Proto: model.UDP, Frontend: op.Key.At, Reach: flows.Everything})
		}
	}
	return fronts
}

// endedFlows returns the flows of an entry to its present target: a relay's port, the
// reject port or the drop port. Other flows of the frontend may belong to another
// mode that already serves it.
func endedFlows(k Key, port uint16) flows.Match {
	f := k.Family
	return flows.Match{
		Proto: model.UDP, Frontend: k.At,
		Gone: flows.SetOf(relayAddrPort(f, port), relayAddrPort(f, rejectPort), relayAddrPort(f, dropPort)),
	}
}
