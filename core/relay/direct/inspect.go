// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Evaluate: what listeners on an adapter do. The
// objects are all that they know; addresses that are on no adapter are not this
// machine's.
func (*Compiler) Evaluate(objects map[Key]Value, _ *model.Host) func(oracle.Packet) oracle.Outcome {
	host := objects[Key{Kind: kindHost}].Host
	own := func(a netip.Addr) bool {
		_, ok := objects[Key{Kind: kindAddress, At: netip.AddrPortFrom(a, 0)}]
		return ok
	}
	return func(p oracle.Packet) oracle.Outcome {
		for k, v := range objects {
			if k.Kind != kindListener || k.Proto != p.Proto || k.At != p.Dst {
				continue
			}
			a := v.Policy.Answer(origin(host, own, p.Src), p.Src)
			if a.Verdict != model.Balance {
				return oracle.Outcome{Fate: oracle.Reject}
			}
			out := oracle.Outcome{Fate: oracle.Forward}
			for _, e := range a.Endpoints {
				out.Endpoints = append(out.Endpoints, oracle.Target{Addr: e, SNAT: true})
			}
			return out
		}
		if own(p.Dst.Addr()) {
			return oracle.Outcome{Fate: oracle.Reject}
		}
		return oracle.Outcome{}
	}
}

func (*Compiler) Text(_ Key, v Value) string {
	if v.Policy != nil {
		return fmt.Sprintf("relay to %v", v.Policy.On[model.FromOutside].Endpoints)
	}
	return ""
}

func (*Compiler) Opaque(Key, Value) bool { return false }
