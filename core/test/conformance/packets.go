// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Packet is a row of a packet table.
type Packet struct {
	Line   int    // in the scenario's file
	From   string // as written
	Src    netip.Addr
	Proto  model.Proto
	To     netip.AddrPort
	Expect Expect
}

// Expect is the right side of a row.
type Expect struct {
	Fate            oracle.Fate
	Endpoints       []oracle.Target // in address order
	SessionAffinity bool            // all connections of one client reach the same endpoint
	Same            bool            // and it is the one of the client's previous row with session affinity
}

// String returns the row without its expectation.
func (p Packet) String() string { return fmt.Sprintf("%s %s %s", p.From, p.Proto, p.To) }

// String returns the expectation as it is written in tables.
func (e Expect) String() string {
	if e.Fate != oracle.Forward {
		return e.Fate.String()
	}
	var b strings.Builder
	for i, t := range e.Endpoints {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(t.Addr.String())
		if t.SNAT {
			b.WriteString("/snat")
		}
		if t.Share > 0 {
			fmt.Fprintf(&b, "=%g%%", 100*t.Share)
		}
	}
	if e.SessionAffinity {
		b.WriteString(" affinity")
	}
	if e.Same {
		b.WriteString(" same")
	}
	return b.String()
}

// Outcome returns what the expectation means to a data plane.
func (e Expect) Outcome() oracle.Outcome {
	return oracle.Outcome{Fate: e.Fate, Endpoints: e.Endpoints}
}

func (p *parser) table(s section) []Packet {
	var rows []Packet
	i := 0
	for text := range strings.Lines(string(s.data)) {
		i++
		text, _, _ = strings.Cut(text, "#")
		if strings.TrimSpace(text) == "" {
			continue
		}
		row, err := parseRow(text)
		if err != nil {
			p.fail(s.line+i, "%v", err)
			continue
		}
		row.Line = s.line + i
		rows = append(rows, row)
	}
	return rows
}

func parseRow(text string) (row Packet, err error) {
	left, right, ok := strings.Cut(text, "->")
	words := strings.Fields(left)
	if !ok || len(words) != 3 {
		return row, errors.New("want \"from proto to -> expectation\"")
	}
	row.From = words[0]
	if row.Proto, err = parseProto(words[1]); err != nil {
		return row, err
	}
	if row.To, err = parseAddrPort(words[2]); err != nil {
		return row, err
	}
	if row.Src, err = parseFrom(row.From, row.To.Addr()); err != nil {
		return row, err
	}
	row.Expect, err = parseExpect(strings.Fields(right), row.To.Addr())
	return row, err
}

func parseProto(word string) (model.Proto, error) {
	for _, p := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		if p.String() == word {
			return p, nil
		}
	}
	return 0, fmt.Errorf("%q is not one of tcp, udp, sctp", word)
}

func parseAddrPort(word string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(word)
	if err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6() {
		return netip.AddrPort{}, fmt.Errorf("%q is not ADDRESS:PORT", word)
	}
	return at, nil
}

func parseFrom(word string, to netip.Addr) (netip.Addr, error) {
	if a, ok := address(word, to.Is4()); ok {
		if word == "host" && to.IsLoopback() {
			return to, nil // the kernel takes the address itself as the source
		}
		return a, nil
	}
	a, err := netip.ParseAddr(word)
	switch {
	case err != nil || a.Zone() != "" || a.Is4In6():
		return a, fmt.Errorf("%q is neither an address nor one of pod, host, outside, remote-pod", word)
	case a.Is4() != to.Is4():
		return a, fmt.Errorf("from %s to %s: two IP families", a, to)
	}
	return a, nil
}

func parseExpect(words []string, to netip.Addr) (e Expect, err error) {
	if len(words) == 0 {
		return e, errors.New("no expectation")
	}
	for _, f := range []oracle.Fate{oracle.Reject, oracle.Drop, oracle.Pass} {
		if words[0] == f.String() {
			e.Fate = f
			if len(words) > 1 {
				return e, fmt.Errorf("%q after %s", words[1], f)
			}
			return e, nil
		}
	}
	e.Fate = oracle.Forward
	snat := false
	for i := len(words) - 1; i >= 0 && slices.Contains([]string{"snat", "affinity", "same"}, words[i]); i-- {
		snat, e.SessionAffinity, e.Same = snat || words[i] == "snat", e.SessionAffinity || words[i] == "affinity", e.Same || words[i] == "same"
		words = words[:i]
	}
	if e.Same && !e.SessionAffinity {
		return e, errors.New("same without affinity")
	}
	if len(words) == 0 {
		return e, errors.New("no endpoints")
	}
	for _, w := range words {
		w, share, err := parseShare(w)
		if err != nil {
			return e, err
		}
		addr, own := strings.CutSuffix(w, "/snat")
		at, err := parseAddrPort(addr)
		if err != nil {
			return e, err
		}
		if at.Addr().Is4() != to.Is4() {
			return e, fmt.Errorf("to %s by %s: two IP families", to, at)
		}
		if slices.ContainsFunc(e.Endpoints, func(t oracle.Target) bool { return t.Addr == at }) {
			return e, fmt.Errorf("%s is listed twice", at)
		}
		e.Endpoints = append(e.Endpoints, oracle.Target{Addr: at, SNAT: snat || own, Share: share})
	}
	sortTargets(e.Endpoints)
	return e, nil
}

// parseShare cuts the share of connections off an endpoint: "10.0.0.1:80=25%".
func parseShare(word string) (rest string, share float64, err error) {
	rest, text, has := strings.Cut(word, "=")
	if !has {
		return rest, 0, nil
	}
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !strings.HasSuffix(text, "%") || !(percent > 0 && percent <= 100) {
		return rest, 0, fmt.Errorf("%q is not a share", text)
	}
	return rest, percent / 100, nil
}

func sortTargets(ts []oracle.Target) {
	slices.SortFunc(ts, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
}

// address returns the address that a word in the from column names, in the
// family of the other end.
func address(word string, v4 bool) (netip.Addr, bool) {
	known := map[string][2]string{
		"pod":        {"10.244.1.10", "fd00:10:244:1::10"},
		"host":       {"192.0.2.1", "2001:db8::1"},
		"outside":    {"192.0.2.100", "2001:db8::100"},
		"remote-pod": {"10.244.2.10", "fd00:10:244:2::10"},
	}
	pair, ok := known[word]
	if !ok {
		return netip.Addr{}, false
	}
	if v4 {
		return netip.MustParseAddr(pair[0]), true
	}
	return netip.MustParseAddr(pair[1]), true
}
