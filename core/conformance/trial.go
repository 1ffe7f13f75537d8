package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// reporter is the part of testing.T that a trial needs.
type reporter interface {
	Errorf(format string, args ...any)
	Log(args ...any)
}

// trial compares one world in a simulator with the oracle.
type trial struct {
	t       reporter
	host    *model.Host
	ports   []*model.Port
	gaps    map[model.PortID][]model.Gap
	sim     func(oracle.Packet) oracle.Outcome
	excuse  func(host *model.Host, p oracle.Packet, want, got oracle.Outcome) string // nil for none
	excused map[excused]int                                                          // packets that differ, by the gap that excuses them
	judged  int
	wrong   int
}

type excused struct {
	port model.PortID
	gap  model.Gap
}

// tooMany is how many differences of one world are shown.
const tooMany = 10

func (s Suite[K, V]) trial(t reporter, host *model.Host, ports []*model.Port, out compiled[K, V]) *trial {
	return &trial{
		t: t, host: host, ports: ports, gaps: out.gaps,
		sim: s.Sim(out.objects, host), excuse: s.Excuse, excused: map[excused]int{},
	}
}

func (tr *trial) judge(what string, p oracle.Packet) {
	tr.judged++
	want, got := oracle.Decide(tr.host, tr.ports, p), tr.sim(p)
	sortTargets(got.Endpoints)
	diff := Diff(want, got)
	if diff == "" {
		return
	}
	if tr.excuse != nil {
		if detail := tr.excuse(tr.host, p, want, got); detail != "" {
			tr.excused[excused{gap: model.Gap{Detail: detail}}]++
			return
		}
	}
	if gap, ok := excuse(tr.gaps, p, want); ok && (!gap.Source || Diff(Masked(want), Masked(got)) == "") {
		tr.excused[excused{want.Port, gap}]++
		return
	}
	if tr.wrong++; tr.wrong <= tooMany {
		tr.t.Errorf("%s: %s (%s)", what, diff, want.Why)
	}
}

// report ends a trial and adds it to the sum.
func (tr *trial) report(what string, sum *tally) {
	sum.worlds++
	sum.packets += tr.judged
	for e, n := range tr.excused {
		sum.excuse(e.gap.Detail, n)
	}
	if tr.wrong > tooMany {
		tr.t.Errorf("%s: %d more packets differ", what, tr.wrong-tooMany)
	}
}

// list logs the gaps that mattered.
func (tr *trial) list(what string) {
	var lines []string
	for e, n := range tr.excused {
		if e.port == (model.PortID{}) {
			continue // the whole mode's: it is in the sum
		}
		lines = append(lines, fmt.Sprintf("%s: gap: %s: %s: %s (%d packets differ)", what, e.port, e.gap.Frontend, e.gap.Detail, n))
	}
	slices.Sort(lines)
	for _, l := range lines {
		tr.t.Log(l)
	}
}

// Show returns a packet as one phrase.
func Show(p oracle.Packet) string {
	from := "the host"
	if p.Iface != "" {
		from = p.Iface
	}
	return fmt.Sprintf("%s (from %s) %s %s", p.Src, from, p.Proto, p.Dst)
}

// lineDiff lists lines of only one of two texts: enough to see what changed in
// a sorted rendering.
func lineDiff(want, got string) string {
	count := map[string]int{}
	for l := range strings.Lines(got) {
		count[l]++
	}
	var b strings.Builder
	for l := range strings.Lines(want) {
		if count[l]--; count[l] < 0 {
			b.WriteString("- " + l)
		}
	}
	for l := range strings.Lines(got) {
		if count[l] > 0 {
			count[l]--
			b.WriteString("+ " + l)
		}
	}
	if b.Len() == 0 {
		return "  the same lines in another order\n"
	}
	return b.String()
}
