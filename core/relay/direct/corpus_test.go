// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/conformance"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// decide is what listeners on an adapter do with a packet: the objects are all
// that it knows. Addresses that are on no adapter are not this machine's.
func decide(objects map[Key]Value, p oracle.Packet) oracle.Outcome {
	host := objects[Key{Kind: KindHost}].Host
	own := func(a netip.Addr) bool {
		_, ok := objects[Key{Kind: KindAddress, At: netip.AddrPortFrom(a, 0)}]
		return ok
	}
	for k, v := range objects {
		if k.Kind != KindListener || k.Proto != p.Proto || k.At != p.Dst {
			continue
		}
		out := oracle.Outcome{}
		a := v.Policy.Answer(origin(host, own, p.Src), p.Src)
		if out.Fate = oracle.Reject; a.Verdict == model.Balance {
			out.Fate = oracle.Forward
			for _, e := range a.Endpoints {
				out.Endpoints = append(out.Endpoints, oracle.Target{Addr: e, SNAT: true})
			}
		}
		return out
	}
	if own(p.Dst.Addr()) {
		return oracle.Outcome{Fate: oracle.Reject}
	}
	return oracle.Outcome{}
}

// TestCorpus judges what listeners can decide, by every scenario: who is served,
// and by which endpoints. Refusal, silence and foreign ports of addresses are
// the system's.
func TestCorpus(t *testing.T) {
	judged := 0
	conformance.EachStep(t, func(s *conformance.Scenario, step conformance.Step, host *model.Host, ports []*model.Port) {
		objects, gaps := dataplane.Compile(NewCompiler(Adapter{}), host, ports)
		for _, row := range step.Packets {
			p := s.Oracle(host, row)
			want := oracle.Decide(host, ports, p)
			byIface := host.Pods.Interface != "" || host.Pods.Prefix != ""
			if p.Proto == model.SCTP || byIface && slices.ContainsFunc(gaps[want.Port], func(g model.Gap) bool { return g.Detail == noIface }) {
				continue
			}
			judged++
			got := decide(objects, p)
			if served := want.Fate == oracle.Forward; served != (got.Fate == oracle.Forward) {
				t.Errorf("%s:%d: %s: want %s, got %s", s.File, row.Line, row, want.Fate, got.Fate)
			} else if served && !conformance.Masked(want).Same(conformance.Masked(got)) {
				t.Errorf("%s:%d: %s: %s", s.File, row.Line, row, conformance.Diff(conformance.Masked(want), conformance.Masked(got)))
			}
		}
	})
	t.Logf("corpus: userspace on an adapter: %d rows", judged)
}
