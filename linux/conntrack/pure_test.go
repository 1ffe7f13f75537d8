// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/flows/flowtest"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

func match(r flows.Reach, front string, gone ...string) flows.Match {
	m := flows.Match{Proto: model.UDP, Frontend: netip.MustParseAddrPort(front), Reach: r}
	for _, e := range gone {
		m.Gone = flows.SetOf(append(m.Gone, netip.MustParseAddrPort(e))...)
	}
	return m
}

// each returns a match for each frontend.
func each(r flows.Reach, fronts []string, gone ...string) (m []flows.Match) {
	for _, f := range fronts {
		m = append(m, match(r, f, gone...))
	}
	return m
}

// many returns matches for up to 255 frontends with the same port.
func many(r flows.Reach, n int, gone ...string) (m []flows.Match) {
	return each(r, numbered("10.96.0.%d:53", n), gone...)
}

func numbered(format string, n int) (s []string) {
	for i := range n {
		s = append(s, fmt.Sprintf(format, i+1))
	}
	return s
}

// full is more entries than narrow dumps would send.
const full = 1 << 20

// A table with few entries is walked once.
func TestPlanForAFewEntries(t *testing.T) {
	matches := append(many(flows.Translated, 3), match(flows.OnlyGone, "10.96.0.9:54", "10.244.1.3:53"))
	for entries, want := range map[int]int{0: 1, walkCost - 1: 1, walkCost: 2, 10 * walkCost: 4} {
		if dumps := plan(matches, true, entries); len(dumps) != want {
			t.Errorf("%d entries: %d dumps, want %d: %v", entries, len(dumps), want, dumps)
		}
	}
}

func TestPlan(t *testing.T) {
	at := netip.MustParseAddrPort
	wide := filter{family: model.IPv4, proto: model.UDP}
	for _, c := range []struct {
		name    string
		matches []flows.Match
		want    []filter
	}{
		{"nothing", nil, nil},
		{"one endpoint of ten fronts", many(flows.OnlyGone, 10, "10.244.1.2:53"), []filter{{family: wide.family, proto: wide.proto, from: at("10.244.1.2:53")}}},
		{
			"hundreds of endpoints of one front",
			[]flows.Match{match(flows.OnlyGone, "10.96.0.10:53", numbered("10.244.1.%d:53", 200)...)},
			[]filter{{family: wide.family, proto: wide.proto, dst: at("10.96.0.10:53")}},
		},
		{
			"a node port",
			[]flows.Match{match(flows.Everything, "0.0.0.0:30053")},
			[]filter{{family: wide.family, proto: wide.proto, dst: netip.AddrPortFrom(netip.Addr{}, 30053)}},
		},
		{
			"hundreds of fronts with one port", many(flows.Translated, 250),
			[]filter{{family: wide.family, proto: wide.proto, dst: netip.AddrPortFrom(netip.Addr{}, 53)}},
		},
		{"hundreds of fronts with as many ports", each(flows.Translated, numbered("10.96.0.10:%d", 300)), []filter{wide}},
		{
			"hundreds of IPv6 endpoints with one port",
			[]flows.Match{
				match(flows.OnlyGone, "[fd00::1]:53", numbered("[fd00:1::%d]:5353", 200)...), match(flows.OnlyGone, "[::]:30053", numbered("[fd00:1::%d]:5353", 200)...),
			},
			[]filter{{family: model.IPv6, proto: model.UDP, from: netip.AddrPortFrom(netip.Addr{}, 5353)}},
		},
		{
			"families apart",
			[]flows.Match{match(flows.Translated, "10.96.0.10:53"), match(flows.Translated, "[fd00::1]:54")},
			[]filter{
				{family: wide.family, proto: wide.proto, dst: at("10.96.0.10:53")},
				{family: model.IPv6, proto: model.UDP, dst: netip.AddrPortFrom(netip.Addr{}, 54)},
			},
		},
	} {
		if got := plan(c.matches, true, full); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := plan(many(flows.OnlyGone, 3, "10.244.1.2:53"), false, full); len(got) != 1 || got[0] != (filter{family: model.IPv4}) {
		t.Errorf("without filters: %v", got)
	}
}

// Whatever is planned, no stale flow is overlooked.
func TestPlanShowsAllStaleFlows(t *testing.T) {
	for _, matches := range [][]flows.Match{
		many(flows.OnlyGone, 3, "10.244.1.2:53", "10.244.1.3:53"),
		many(flows.OnlyGone, 20, numbered("10.244.1.%d:53", 20)...),
		append(many(flows.Translated, 2), match(flows.OnlyGone, "0.0.0.0:30053", numbered("10.244.1.%d:53", 9)...)),
		{match(flows.OnlyGone, "[fd00::1]:53", "[fd00:1::2]:53"), match(flows.Everything, "[fd00::2]:53")},
	} {
		for _, entries := range []int{0, 10_000, full} {
			dumps := plan(matches, true, entries)
			for _, f := range sample(matches) {
				seen := false
				for i := range dumps {
					seen = seen || dumps[i].family == model.FamilyOf(f.Dst.Addr()) && dumps[i].fits(f)
				}
				if flowtest.IndexOf(matches).Stale(f) && !seen {
					t.Errorf("%v from %v is not among %v", f.Dst, f.From, dumps)
				}
			}
		}
	}
}

// sample returns flows of all frontends from all endpoints and some more.
func sample(matches []flows.Match) (all []flows.Flow) {
	for _, m := range matches {
		dst := m.Frontend
		if m.AnyAddr() {
			dst = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), dst.Port())
		}
		all = append(all, flows.Flow{Proto: m.Proto, Dst: dst, From: dst})
		for _, o := range matches {
			for _, e := range o.Gone {
				all = append(all, flows.Flow{Proto: m.Proto, Dst: dst, From: e})
			}
		}
	}
	return all
}

// sent returns an entry as a kernel sends it in a dump.
func sent(seq uint32, flags uint16, zone []byte) []byte {
	w := &netlink.Writer{}
	direction := func(attr uint16, src, dst, srcPort, dstPort byte) {
		tuple := w.Nest(attr)
		ip := w.Nest(ctaTupleIP)
		w.Bytes(ctaIPv4Src, []byte{10, 0, 0, src})
		w.Bytes(ctaIPv4Src+1, []byte{10, 0, 0, dst})
		w.NestEnd(ip)
		proto := w.Nest(ctaTupleProto)
		w.Uint8(ctaProtoNum, 17)
		w.Uint16(ctaProtoSrc, uint16(srcPort))
		w.Uint16(ctaProtoDst, uint16(dstPort))
		w.NestEnd(proto)
		w.NestEnd(tuple)
	}
	w.Begin(msgNew, flags, seq, netlink.FamilyOf(model.IPv4), 0)
	direction(ctaTupleOrig, 1, 2, 11, 12)
	direction(ctaTupleReply, 3, 1, 13, 11)
	if zone != nil {
		w.Bytes(ctaZone, zone)
	}
	w.Bytes(ctaID, []byte{1, 2, 3, 4})
	w.End()
	return w.Buf
}

func TestParseEntry(t *testing.T) {
	e, err := parseEntry(sent(1, 0, []byte{0, 7})[netlink.HeaderLen:])
	want := flows.Flow{Proto: model.UDP, Dst: netip.MustParseAddrPort("10.0.0.2:12"), From: netip.MustParseAddrPort("10.0.0.3:13")}
	if err != nil || e.flow != want || !e.flow.Translated() {
		t.Errorf("%+v, %v; want %+v", e.flow, err, want)
	}
	if len(e.zone) != 8 || !bytes.Contains(e.id, []byte{1, 2, 3, 4}) {
		t.Errorf("zone %x, id %x", e.zone, e.id)
	}
}

// What is parsed can be deleted, and exactly that: a request without a tuple
// would empty the table.
func FuzzParse(f *testing.F) {
	f.Add(sent(1, 2, nil))
	f.Add(append(sent(1, 2, []byte{0, 7}), sent(2, 2, nil)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for m, err := range netlink.Messages(b) {
			if err != nil {
				return
			}
			e, err := parseEntry(m.Body)
			if err != nil {
				continue
			}
			w := &netlink.Writer{}
			e.identify(w)
			attrs := map[uint16][]byte{}
			for b := w.Buf; len(b) > 0; {
				a, rest, ok := netlink.CutAttr(b)
				if !ok {
					t.Fatalf("the request %x is malformed", w.Buf)
				}
				attrs[a.Type], b = a.Value, rest
			}
			if got, ok := parseTuple(attrs[ctaTupleReply]); !ok || got.src != e.flow.From || attrs[ctaID] == nil {
				t.Fatalf("a request to delete %v from %x", got, attrs)
			}
		}
	})
}
