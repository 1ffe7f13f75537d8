// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

type addr = netip.Addr

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestCorpus judges the compiler, the driver and the emulator's model of the
// switch by every scenario and by random worlds.
func TestCorpus(t *testing.T) {
	run(t, hnsemu.WS2025, hns.TypeL2Bridge, hns.Newest(), "kernelspace", golden)
}

// The same on an overlay, and on the oldest Windows, whose goldens would say
// nothing new.
func TestCorpusOnOverlay(t *testing.T) {
	o := hns.Newest()
	o.Overlay = true
	run(t, hnsemu.WS2022, hns.TypeOverlay, o, "kernelspace on overlay", nil)
}

func TestCorpusWithoutDSR(t *testing.T) {
	run(t, hnsemu.WS2019, hns.TypeL2Bridge, hns.Options{}, "kernelspace without DSR", nil)
}

func run(t *testing.T, v hns.Version, kind string, o hns.Options, mode string, golden func(map[hns.Key]hns.Value) string) {
	c := hns.NewCompiler(o)
	conformance.Run(t, conformance.Suite[hns.Key, hns.Value]{
		Mode: mode, Compiler: strict{c}, Sim: sim(t, v, kind, c), Excuse: excuse(o.ClientDSR), Golden: golden,
	})
}

// golden renders what ports need, one object a line.
func golden(objects map[hns.Key]hns.Value) string {
	var lines []string
	for k, v := range objects {
		lines = append(lines, line(k, v))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func line(k hns.Key, v hns.Value) string {
	b := v.Balancer
	if b == nil {
		return k.String()
	}
	s := k.String()
	for _, flag := range []struct {
		set  bool
		name string
	}{{b.DSR, "dsr"}, {b.External, "external"}, {b.SessionAffinity, "affinity"}} {
		if flag.set {
			s += " " + flag.name
		}
	}
	s += fmt.Sprintf(" from %s to port %d of", v.Node, b.Port)
	for _, t := range b.Endpoints {
		s += " " + t.Addr.String()
		if t.Local {
			s += " (local)"
		}
	}
	return s
}

// excuse names what HNS never does, whatever the Service, and exactly that: each
// states what must happen instead. The package doc says the same.
func excuse(dsr bool) func(*model.Host, oracle.Packet, oracle.Outcome, oracle.Outcome) string {
	return func(host *model.Host, p oracle.Packet, want, got oracle.Outcome) string {
		passed := func(instead oracle.Fate) bool { return want.Fate == instead && got.Fate == oracle.Pass }
		outside, own := p.Iface == conformance.Uplink, slices.Contains(host.IPs, p.Src)
		switch {
		case want.Why == model.WhyNoSuchPort && passed(oracle.Reject):
			return "other ports of a cluster IP are not refused"
		case want.Why == model.WhyUnallocated && passed(oracle.Drop):
			return "addresses of the Services' ranges that no Service has are not dropped"
		case want.Kind == model.KindClusterIP && outside && passed(oracle.Forward):
			return "cluster IPs are for this node's pods and processes only"
		case want.Kind == model.KindNodePort && p.Iface == "" && passed(oracle.Forward):
			return "node ports do not answer the node itself"
		case want.Why == model.WhyNoLocalEndpoints && passed(oracle.Drop):
			return "what no endpoint is for goes its way instead of being dropped"
		case dsr && onlyHairpin(p, want, got) && !hidden(got, true):
			return "a pod that reaches itself sees its own address with DSR"
		case want.Kind == model.KindClusterIP && sameEndpoints(want, got) && hidden(got, !dsr || own):
			return "endpoints of a cluster IP see their clients with DSR, and the node without"
		}
		return ""
	}
}

// hidden reports whether all endpoints, or none of them, see the node in place
// of the client.
func hidden(o oracle.Outcome, all bool) bool {
	return !slices.ContainsFunc(o.Endpoints, func(t oracle.Target) bool { return t.SNAT != all })
}

// sameEndpoints reports whether two outcomes differ only in the addresses that
// endpoints see.
func sameEndpoints(a, b oracle.Outcome) bool {
	return a.Fate == oracle.Forward && b.Fate == a.Fate &&
		slices.EqualFunc(a.Endpoints, b.Endpoints, func(x, y oracle.Target) bool { return x.Addr == y.Addr })
}

// onlyHairpin reports whether they do so only for the endpoint that is the
// client itself.
func onlyHairpin(p oracle.Packet, want, got oracle.Outcome) bool {
	return sameEndpoints(want, got) && slices.EqualFunc(want.Endpoints, got.Endpoints, func(x, y oracle.Target) bool {
		return x.SNAT == y.SNAT || x.Addr.Addr() == p.Src
	})
}

// strict is the compiler without the gap that no packet shows: it must not
// excuse others.
type strict struct{ *hns.Compiler }

func (s strict) Port(host *model.Host, port *model.Port, emit func(hns.Key, hns.Value)) []model.Gap {
	return slices.DeleteFunc(s.Compiler.Port(host, port, emit), func(g model.Gap) bool {
		return strings.HasPrefix(g.Detail, "clients ") && strings.Contains(g.Detail, "stay with their endpoint")
	})
}
