// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// The fake data plane is a table of frontends by address, one mark for each cluster
// IP, and in the base the ranges of cluster IPs. It is complete and right, unless
// a test breaks it.
type fakeKey struct {
	proto  model.Proto
	at     netip.AddrPort // port 0 for the mark of a cluster IP
	origin model.Origin
}

type fakeValue struct {
	act        model.Action
	restricted bool
	allow      []netip.Prefix
	pool       []model.Endpoint
}

type fakeCompiler struct {
	dataplane.SimpleCompiler[fakeKey, fakeValue]
	gap *model.Gap // declared for every port
}

func (fakeCompiler) Base(host *model.Host, emit func(fakeKey, fakeValue)) {
	emit(fakeKey{}, fakeValue{allow: host.ServiceCIDRs})
}

func (c fakeCompiler) Port(_ *model.Host, port *model.Port, emit func(fakeKey, fakeValue)) []model.Gap {
	for _, f := range port.Frontends {
		for o, act := range f.On {
			v := fakeValue{act: act, restricted: f.Restricted, allow: f.Allow}
			if act.Pool != nil {
				v.pool, v.act.Pool = act.Pool.Endpoints, nil
			}
			emit(fakeKey{port.ID.Proto, f.At, model.Origin(o)}, v)
		}
		if f.Kind == model.KindClusterIP {
			emit(fakeKey{at: netip.AddrPortFrom(f.At.Addr(), 0)}, fakeValue{})
		}
	}
	if c.gap != nil {
		return []model.Gap{*c.gap}
	}
	return nil
}

func (fakeCompiler) Rank(fakeKey) int { return 0 }

func (fakeCompiler) Equal(a, b fakeValue) bool {
	return a.act == b.act && a.restricted == b.restricted && slices.Equal(a.allow, b.allow) && slices.Equal(a.pool, b.pool)
}

func (fakeCompiler) Slots(have func(fakeKey) (fakeValue, bool), proto model.Proto, at netip.AddrPort, from model.Origin) (order []netip.AddrPort) {
	v, _ := have(fakeKey{proto, at, from})
	for _, e := range v.pool {
		order = append(order, e.Addr)
	}
	return order
}

func (fakeCompiler) ServiceCIDRs(k fakeKey, v fakeValue) []netip.Prefix {
	if k != (fakeKey{}) {
		return nil
	}
	return v.allow
}

func fakeSim(objects map[fakeKey]fakeValue, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return func(p oracle.Packet) oracle.Outcome {
		origin := oracle.Origin(host, p)
		v, ok := objects[fakeKey{p.Proto, p.Dst, origin}]
		own := slices.Contains(host.IPs, p.Dst.Addr()) || p.Dst.Addr().IsLoopback()
		if !ok && own && host.NodePorts.Contains(p.Dst.Addr()) {
			any := model.FamilyOf(p.Dst.Addr()).Unspecified()
			v, ok = objects[fakeKey{p.Proto, netip.AddrPortFrom(any, p.Dst.Port()), origin}]
		}
		if !ok {
			if _, cluster := objects[fakeKey{at: netip.AddrPortFrom(p.Dst.Addr(), 0)}]; cluster {
				return oracle.Outcome{Fate: oracle.Reject}
			}
			if slices.ContainsFunc(objects[fakeKey{}].allow, func(r netip.Prefix) bool { return r.Contains(p.Dst.Addr()) }) {
				return oracle.Outcome{Fate: oracle.Drop}
			}
			return oracle.Outcome{Fate: oracle.Pass}
		}
		if v.restricted && !slices.ContainsFunc(v.allow, func(r netip.Prefix) bool { return r.Contains(p.Src) }) {
			return oracle.Outcome{Fate: oracle.Drop}
		}
		out := oracle.Outcome{Fate: map[model.Verdict]oracle.Fate{
			model.Balance: oracle.Forward, model.Reject: oracle.Reject, model.Drop: oracle.Drop,
		}[v.act.Verdict]}
		for _, e := range v.pool {
			leaves := !slices.Contains(host.IPs, e.Addr.Addr())
			out.Endpoints = append(out.Endpoints, oracle.Target{Addr: e.Addr, SNAT: leaves && v.act.SNAT || host.NeedsHairpinSNAT(e) && e.Addr.Addr() == p.Src})
		}
		return out
	}
}

func fakeGolden(objects map[fakeKey]fakeValue) string {
	var lines []string
	for k, v := range maps.All(objects) {
		lines = append(lines, fmt.Sprintf("%s %s from %s: %s %v\n", k.proto, k.at, k.origin, v.act.Verdict, v.pool))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func fakeSuite() Suite[fakeKey, fakeValue] {
	return Suite[fakeKey, fakeValue]{Mode: "fake", Compiler: fakeCompiler{}, Sim: fakeSim}
}

var _ dataplane.Compiler[fakeKey, fakeValue] = fakeCompiler{}

// notes records what a trial reports.
type notes struct{ errors, logs []string }

func (n *notes) Errorf(format string, args ...any) {
	n.errors = append(n.errors, fmt.Sprintf(format, args...))
}
func (n *notes) Log(args ...any) { n.logs = append(n.logs, fmt.Sprint(args...)) }
