// SPDX-License-Identifier: Apache-2.0

package question

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/track"
)

// Explanation states why a connection goes where it does. Its JSON form is stable.
type Explanation struct {
	Node     string `json:"node" nodes:"own"`
	Mode     string `json:"mode"`
	From     string `json:"from" nodes:"own"` // the sender's address
	Protocol string `json:"protocol"`
	To       string `json:"to"`

	Service   string          `json:"service,omitempty"`
	Frontend  string          `json:"frontend,omitempty"`
	Steps     []oracle.Step   `json:"steps"`
	Outcome   string          `json:"outcome"` // forward, reject, drop or pass
	Why       string          `json:"why"`
	Endpoints []oracle.Target `json:"endpoints,omitempty"`

	Objects  []dataplane.Object `json:"objects,omitempty" nodes:"-"` // without which it would fare otherwise
	Problems []Problem          `json:"problems,omitempty"`
	Missing  bool               `json:"missing,omitempty"` // the mode does not program this frontend: see Problems
	Failing  string             `json:"failing,omitempty"` // why this is not programmed
	// HidesClients means that in this mode endpoints see an address of this node, whatever
	// Endpoints say: model.Gap's Source.
	HidesClients bool `json:"hidesClients,omitempty"`
}

// Explain is the question of tandem explain.
func Explain() Verb[oracle.Question, Explanation] {
	return Verb[oracle.Question, Explanation]{Name: "explain", Needs: needsOf, Answer: explain}
}

func explain(_ context.Context, d *Document, q oracle.Question) (Explanation, error) {
	e, ports, err := d.explain(q)
	if err != nil {
		return Explanation{}, err
	}
	return d.explanation(e, ports), nil
}

func needsOf(q oracle.Question) Needs {
	return Needs{Services: func(t *track.Tracker) []*track.View { return concerned(t, q) }, Sorted: true}
}

// concerned returns the Services that an answer depends on: all only where a sender is
// looked for among all endpoints.
func concerned(t *track.Tracker, q oracle.Question) []*track.View {
	host := t.Host()
	if host == nil || q.NeedsEndpoints(host) {
		return t.Unsorted()
	}
	var named []*track.View
	if n, ok := q.Service(); ok {
		named = t.Named(n)
	}
	var ports []*model.Port
	for _, s := range named {
		ports = append(ports, s.Ports...)
	}
	packet, err := q.Packet(host, ports)
	if err != nil {
		return named // the same error without the others
	}
	all := t.Concerned(packet.Proto, packet.Dst)
	for _, s := range named {
		if !slices.ContainsFunc(all, func(o *track.View) bool { return o.Object == s.Object }) {
			all = append(all, s)
		}
	}
	return all
}

// mostQuestions bounds the questions of one request for outcomes.
const mostQuestions = 10000

// Outcomes is the question of tandem test: what must happen to many packets, all by the state that is
// known at one moment. Explanations have no Objects, which take longer than all the rest.
func Outcomes() Verb[[]oracle.Question, []Explanation] {
	return Verb[[]oracle.Question, []Explanation]{Name: "outcomes", Answer: outcomes, Needs: func([]oracle.Question) Needs {
		return Needs{Services: (*track.Tracker).Unsorted, Sorted: true}
	}}
}

func outcomes(ctx context.Context, d *Document, all []oracle.Question) ([]Explanation, error) {
	if len(all) > mostQuestions {
		return nil, errors.New("too many questions in one request")
	}
	without := *d
	without.Plane.Implementation = nil
	answers := make([]Explanation, 0, len(all))
	for _, q := range all {
		e, err := explain(ctx, &without, q)
		if err != nil {
			return nil, fmt.Errorf("from %s to %s: %w", q.From, q.To, err)
		}
		answers = append(answers, e)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return answers, nil
}

// explain returns the explanation and the ports of the Service that it is about.
func (d *Document) explain(q oracle.Question) (e oracle.Explanation, of []*model.Port, err error) {
	all := d.Ports()
	p, err := q.Packet(d.Host, all)
	if err != nil {
		return e, nil, err
	}
	e = oracle.Explain(d.Host, all, p)
	if e.Port != nil {
		of = d.service(e.Port.ID.Service).Ports
	}
	return e, of, nil
}

func (d *Document) explanation(e oracle.Explanation, ports []*model.Port) Explanation {
	out := Explanation{
		Node: d.Host.Name, Mode: d.Facts.Mode, From: e.Packet.Src.String(), Protocol: e.Packet.Proto.String(), To: e.Packet.Dst.String(),
		Steps: e.Steps, Outcome: e.Outcome.Fate.String(), Why: e.Outcome.Why.Text(), Endpoints: e.Outcome.Endpoints,
	}
	if of := d.Plane.Implementation; of != nil {
		out.Objects = of(ports, e.Packet)
	}
	if e.Port == nil {
		return out
	}
	id := e.Port.ID
	out.Endpoints = slices.Clone(out.Endpoints)
	for i, pods := 0, model.PodsOf(d.service(id.Service).Slices); i < len(out.Endpoints); i++ {
		out.Endpoints[i].Pod = pods[out.Endpoints[i].Addr.Addr()]
	}
	out.Why = e.Port.WhyText(e.Outcome.Why)
	out.Service = id.Service.String()
	if e.Frontend != nil {
		out.Frontend = e.Frontend.Kind.String()
	}
	out.Problems = problems(d.service(id.Service).Problems)
	if e.Frontend != nil {
		_, out.Missing = GapsOf(e.Frontend, d.Backend.Gaps[id])
	}
	for _, g := range d.Backend.Gaps[id] {
		if !g.Frontend.IsValid() || e.Frontend != nil && g.Frontend == e.Frontend.At || g.Frontend == netip.AddrPortFrom(e.Packet.Dst.Addr(), 0) {
			out.HidesClients = out.HidesClients || g.Source
			out.Problems = append(out.Problems, Problem{Reason: model.WhyUnsupported.String(), Detail: "mode " + d.Facts.Mode + ": " + gap(e.Port, g)})
		}
	}
	for _, of := range []model.PortID{id, {}} {
		if err := d.Backend.Failures[of]; err != nil {
			out.Failing = err.Error()
			break
		}
	}
	return out
}

// Trace compares what must happen to a connection with what the data plane does,
// by its objects read back. Its JSON form is stable.
type Trace struct {
	Explanation

	Verdict   Verdict         `json:"verdict"`   // on the objects; live.difference is on the packet
	Installed string          `json:"installed"` // forward, reject, drop, pass; or unknown
	Reaches   []oracle.Target `json:"reaches,omitempty"`
	// Gap is what the mode cannot do, where that is all in which they differ.
	Gap string `json:"gap,omitempty"`
	// Differences are objects that are not as wanted: first those that each change
	// the outcome, Deciding of them.
	Differences []Difference `json:"differences,omitempty"`
	Deciding    int          `json:"deciding"`
	// Others are rules of other programs in the packet's path, and other observations.
	Others  []string `json:"others,omitempty"`
	Objects int      `json:"objectsRead" nodes:"-"`
	TookMS  float64  `json:"tookMs" nodes:"-"`
	Live    *Live    `json:"live,omitempty"`
}

// Verdict is what a trace comes to.
type Verdict string

// The verdicts.
const (
	AsExplained Verdict = "same"    // the data plane does what must happen
	ByGap       Verdict = "gap"     // except for the mode's gaps
	NotSame     Verdict = "differs" // it does something else
	NotKnown    Verdict = "unknown" // an object has content that tandem did not write
)

// Difference is one object that is not as wanted.
type Difference struct {
	Object  string `json:"object" nodes:"key"`
	State   string `json:"state"` // missing, differs, unexpected
	Service string `json:"service,omitempty"`
	Wanted  string `json:"wanted,omitempty"`
	Found   string `json:"found,omitempty"`
}

// differenceOf describes a difference.
func differenceOf(d dataplane.Difference) Difference {
	out := Difference{Object: d.Object, State: string(d.State), Wanted: d.Wanted, Found: d.Found}
	if d.Owner != (model.PortID{}) {
		out.Service = d.Owner.Service.String()
	}
	return out
}

// Live is what became of a packet that was really sent.
type Live struct {
	Client   string   `json:"client"`             // that sent it, as the kernel saw it
	Outcome  string   `json:"outcome"`            // forward, reject, drop, pass; unknown where no packet was seen
	Endpoint string   `json:"endpoint,omitempty"` // that it was sent to
	Sees     string   `json:"sees,omitempty"`     // the client, as that endpoint sees it
	SNAT     bool     `json:"snat"`
	Path     []string `json:"path,omitempty"` // rules and objects that it traversed, in order
	// Difference is the first respect in which that differs from policy.
	Difference string  `json:"difference,omitempty"`
	TookMS     float64 `json:"tookMs"` // until its fate was known
}

// Compare sets the difference from what must happen.
func (l *Live) Compare(e Explanation) {
	switch {
	case l.Outcome == unknownOutcome:
		return
	case l.Outcome != e.Outcome:
		l.Difference = fmt.Sprintf("outcome %s, must be %s", l.Outcome, e.Outcome)
		if n := len(l.Path); n > 0 && l.Outcome != oracle.Forward.String() {
			l.Difference += ": last rule hit: " + l.Path[n-1]
		}
		return
	case l.Outcome != oracle.Forward.String():
		return
	}
	for _, t := range e.Endpoints {
		if t.Addr.String() != l.Endpoint {
			continue
		}
		if snat := t.SNAT || e.HidesClients; snat != l.SNAT && (l.SNAT || !e.FromHost()) { // which has the same address then
			l.Difference = fmt.Sprintf("%s sees %s, SNAT %t, must be %t", l.Endpoint, l.Sees, l.SNAT, snat)
		}
		return
	}
	l.Difference = fmt.Sprintf("%s is no endpoint for it: %s", l.Endpoint, Fate(e.Outcome, e.Endpoints))
}

// FromHost reports whether this node itself is the client.
func (e Explanation) FromHost() bool {
	return slices.ContainsFunc(e.Steps, func(s oracle.Step) bool {
		return s.About == oracle.AboutOrigin && s.Result == model.FromHost.String()
	})
}

// unknownOutcome is that of a packet that was not seen, or meets content which tandem did not write.
const unknownOutcome = "unknown"

// Seen reports whether a packet was seen.
func (l *Live) Seen() bool { return l.Outcome != unknownOutcome }

// Unseen is the result without a packet.
func Unseen() Live { return Live{Outcome: unknownOutcome} }

// TracePacket is the question of tandem trace.
func TracePacket() Verb[oracle.Question, Trace] {
	return Verb[oracle.Question, Trace]{Name: "trace", Kernel: true, Needs: needsOf, Answer: trace}
}

// trace follows the packet of a question through the data plane.
func trace(ctx context.Context, s *Document, q oracle.Question) (Trace, error) {
	if s.Plane.Unread != nil {
		return Trace{}, s.Plane.Unread
	}
	e, ports, err := s.explain(q)
	if err != nil {
		return Trace{}, err
	}
	found, err := s.Plane.Trace(ctx, ports, e.Packet)
	if err != nil {
		return Trace{}, err
	}
	t := Trace{
		Explanation: s.explanation(e, ports), Installed: found.Installed.Fate.String(), Reaches: found.Installed.Endpoints,
		Others: found.Others, Deciding: found.Deciding, Objects: found.Objects, TookMS: float64(found.Took.Microseconds()) / 1000,
	}
	for _, d := range found.Differences {
		t.Differences = append(t.Differences, differenceOf(d))
	}
	switch {
	case len(found.Opaque) > 0:
		t.Verdict, t.Installed, t.Reaches = NotKnown, unknownOutcome, nil
	case found.Installed.Same(e.Outcome):
		t.Verdict = AsExplained
	case found.Installed.Same(found.Programmed):
		t.Verdict, t.Gap = ByGap, s.gapText(e)
	default:
		t.Verdict = NotSame
	}
	return t, nil
}

// gapText reports what the mode cannot do for a packet.
func (s *Document) gapText(e oracle.Explanation) string {
	if e.Port != nil {
		for _, g := range s.Backend.Gaps[e.Port.ID] {
			return gap(e.Port, g)
		}
	}
	return "mode " + s.Facts.Mode + " does this for all Services"
}

// Findings are the verdict in words, and what differs of a real packet.
func (t *Trace) Findings() (all []string) {
	live := ""
	if t.Live != nil {
		live = t.Live.Difference
	}
	switch {
	case t.Verdict == AsExplained && live != "":
		live = "the objects are right, but the packet was handled differently: " + live
	case t.Verdict == AsExplained:
		all = append(all, "SAME: the data plane does what it should")
	case t.Verdict == ByGap:
		all = append(all, "GAP: programmed as intended, but this mode cannot do all that the Service asks for: "+t.Gap)
	case t.Verdict == NotKnown:
		all = append(all, "UNKNOWN: an object on the packet's path has content that tandem did not write")
	default:
		all = append(all, "DIFFERS: the data plane does something else")
	}
	if live != "" {
		all = append(all, "LIVE DIFFERS: "+live)
	}
	return all
}

// OK reports whether the data plane agrees with policy.
func (t Trace) OK() bool {
	return (t.Verdict == AsExplained || t.Verdict == ByGap) && (t.Live == nil || t.Live.Difference == "")
}

// Shown is how many elements of a list are shown to people.
const Shown = 4

// Fate is a fate with its endpoints, in a few words.
func Fate(fate string, to []oracle.Target) string {
	if fate != oracle.Forward.String() {
		return fate
	}
	var first []string
	for _, t := range to[:min(len(to), Shown)] {
		text := t.Addr.String()
		if t.SNAT {
			text += " (SNAT)"
		}
		first = append(first, text)
	}
	return fate + " to " + printable.First(first, len(to))
}
