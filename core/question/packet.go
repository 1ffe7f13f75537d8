// SPDX-License-Identifier: Apache-2.0

package question

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/track"
)

// Subject is what questions about packets are asked of: a running proxy's, or what
// manifests mean.
type Subject struct {
	Mode     string
	Host     *model.Host
	Services []*track.View
	Gaps     map[model.PortID][]model.Gap
	Failures map[model.PortID]error // nil where nothing runs

	// Implementation is that of the backend, or of its plan.
	Implementation func([]*model.Port, oracle.Packet) []dataplane.Object
}

func (s *Subject) ports() (all []*model.Port) {
	for i := range s.Services {
		all = append(all, s.Services[i].Ports...)
	}
	return all
}

// service returns a Service, an empty one if there is none of the name.
func (s *Subject) service(n model.ServiceName) *track.View {
	for _, svc := range s.Services {
		if svc.Object.Name == n {
			return svc
		}
	}
	return new(track.View)
}

// Explanation states why a connection goes where it does. Its JSON form is stable.
type Explanation struct {
	Node     string `json:"node"`
	Mode     string `json:"mode"`
	From     string `json:"from"` // the sender's address
	Protocol string `json:"protocol"`
	To       string `json:"to"`

	Service   string        `json:"service,omitempty"`
	Frontend  string        `json:"frontend,omitempty"`
	Steps     []oracle.Step `json:"steps"`
	Outcome   string        `json:"outcome"` // forward, reject, drop or pass
	Why       string        `json:"why"`
	Endpoints []Target      `json:"endpoints,omitempty"`

	Objects  []dataplane.Object `json:"objects,omitempty"` // without which it would fare otherwise
	Problems []Problem          `json:"problems,omitempty"`
	Missing  bool               `json:"missing,omitempty"` // the mode does not program this frontend: see Problems
	Failing  string             `json:"failing,omitempty"` // why this is not programmed
	// HidesClients means that in this mode endpoints see an address of this node, whatever
	// Endpoints say: model.Gap's Source.
	HidesClients bool `json:"hidesClients,omitempty"`
}

// Target is an endpoint that a connection may reach.
type Target struct {
	Address string `json:"address"`
	SNAT    bool   `json:"snat"`
}

// Explain answers a question. The error is that the question has no answer.
func Explain(s Subject, q oracle.Question) (Explanation, error) {
	e, ports, err := s.explain(q)
	if err != nil {
		return Explanation{}, err
	}
	return s.explanation(e, ports), nil
}

// explain returns the explanation and the ports of the Service that it is about.
func (s *Subject) explain(q oracle.Question) (e oracle.Explanation, of []*model.Port, err error) {
	all := s.ports()
	p, err := q.Packet(s.Host, all)
	if err != nil {
		return e, nil, err
	}
	e = oracle.Explain(s.Host, all, p)
	if e.Port != nil {
		of = s.service(e.Port.ID.Service).Ports
	}
	return e, of, nil
}

func (s *Subject) explanation(e oracle.Explanation, ports []*model.Port) Explanation {
	out := Explanation{
		Node: s.Host.Name, Mode: s.Mode, From: e.Packet.Src.String(), Protocol: e.Packet.Proto.String(), To: e.Packet.Dst.String(),
		Steps: e.Steps, Outcome: e.Outcome.Fate.String(), Why: e.Outcome.Why.Text(), Endpoints: targets(e.Outcome),
		Objects: s.Implementation(ports, e.Packet),
	}
	if e.Port == nil {
		return out
	}
	id := e.Port.ID
	out.Why = e.Port.WhyText(e.Outcome.Why)
	out.Service = id.Service.String()
	if e.Frontend != nil {
		out.Frontend = e.Frontend.Kind.String()
	}
	out.Problems = problems(s.service(id.Service).Problems)
	if e.Frontend != nil {
		_, out.Missing = GapsOf(e.Frontend, s.Gaps[id])
	}
	for _, g := range s.Gaps[id] {
		if !g.Frontend.IsValid() || e.Frontend != nil && g.Frontend == e.Frontend.At || g.Frontend == netip.AddrPortFrom(e.Packet.Dst.Addr(), 0) {
			out.HidesClients = out.HidesClients || g.Source
			out.Problems = append(out.Problems, Problem{Reason: model.WhyUnsupported.String(), Detail: "mode " + s.Mode + ": " + gap(e.Port, g)})
		}
	}
	for _, of := range []model.PortID{id, {}} {
		if err := s.Failures[of]; err != nil {
			out.Failing = err.Error()
			break
		}
	}
	return out
}

func targets(o oracle.Outcome) (all []Target) {
	for _, t := range o.Endpoints {
		all = append(all, Target{t.Addr.String(), t.SNAT})
	}
	return all
}

// Write prints an explanation for people.
func (e Explanation) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s/%s on node %s, mode %s\n\n", e.From, e.To, e.Protocol, e.Node, e.Mode)
	for _, s := range e.Steps {
		fmt.Fprintf(&b, "  %-14s %-17s %s\n", s.About, s.Result, printable.Text(s.Why))
	}
	b.WriteString("\n" + e.result() + "\n")
	writeTargets(&b, e.Endpoints)
	if len(e.Objects) > 0 {
		fmt.Fprintf(&b, "\nimplemented by %s:\n", printable.Count(len(e.Objects), "object"))
	}
	writeObjects(&b, e.Objects)
	if e.Missing {
		fmt.Fprintf(&b, "\nNOT PROGRAMMED: mode %s does not serve this frontend\n", e.Mode)
	}
	if e.Failing != "" {
		fmt.Fprintf(&b, "\nFAILING: this is not programmed: %s\n", printable.Text(e.Failing))
	}
	writeProblems(&b, e.Service, e.Problems)
	_, err := io.WriteString(w, printable.Lines(b.String()))
	return err
}

func (e Explanation) result() string {
	switch e.Outcome {
	case oracle.Forward.String():
		return "FORWARD: to one of these endpoints:"
	case oracle.Reject.String():
		return "REJECT: the client gets \"connection refused\": " + e.Why
	case oracle.Drop.String():
		return "DROP: the client gets no answer: " + e.Why
	}
	return "PASS: tandem does nothing with it: " + e.Why
}

// shown is how many endpoints and objects are listed for people.
const shown = 20

func writeTargets(b *strings.Builder, all []Target) {
	for i, t := range all {
		if i == shown {
			fmt.Fprintf(b, "  and %d more\n", len(all)-shown)
			return
		}
		sees := "sees the client"
		if t.SNAT {
			sees = "sees this node (SNAT)"
		}
		fmt.Fprintf(b, "  %-24s %s\n", t.Address, sees)
	}
}

func writeObjects(b *strings.Builder, all []dataplane.Object) {
	for i, o := range all {
		if i == shown {
			fmt.Fprintf(b, "  and %d more (-o json)\n", len(all)-shown)
			return
		}
		fmt.Fprintf(b, "  %s\n", printable.Text(o.Name))
		for part := range strings.SplitSeq(o.Text, "\n") {
			if part != "" && part != o.Name {
				fmt.Fprintf(b, "      %s\n", printable.Text(part))
			}
		}
	}
}

// writeProblems lists what was rejected or cannot be done.
func writeProblems(b *strings.Builder, object string, all []Problem) {
	for _, p := range all {
		fmt.Fprintf(b, "! %s: %s", printable.Text(object), printable.Text(p.Detail))
		if p.Where != "" {
			fmt.Fprintf(b, " (%s)", printable.Text(p.Where))
		}
		b.WriteString("\n")
	}
}

// Trace compares what must happen to a connection with what the data plane does,
// by its objects read back. Its JSON form is stable.
type Trace struct {
	Explanation

	Verdict   Verdict  `json:"verdict"`
	Installed string   `json:"installed"` // forward, reject, drop, pass; or unknown
	Reaches   []Target `json:"reaches,omitempty"`
	// Gap is what the mode cannot do, where that is all in which they differ.
	Gap string `json:"gap,omitempty"`
	// Differences are objects that are not as wanted: first those that each change
	// the outcome, Deciding of them.
	Differences []Difference `json:"differences,omitempty"`
	Deciding    int          `json:"deciding"`
	// Others are rules of other programs in the packet's path, and other observations.
	Others  []string `json:"others,omitempty"`
	Objects int      `json:"objectsRead"`
	TookMS  float64  `json:"tookMs"`
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
	Object  string `json:"object"`
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
	Client   string   `json:"client"`             // that sent it
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
			l.Difference += ": the last it met is " + l.Path[n-1]
		}
		return
	case l.Outcome != oracle.Forward.String():
		return
	}
	for _, t := range e.Endpoints {
		if t.Address != l.Endpoint {
			continue
		}
		if snat := t.SNAT || e.HidesClients; snat != l.SNAT && (l.SNAT || !e.FromHost()) { // which has the same address then
			l.Difference = fmt.Sprintf("%s sees %s, SNAT %t, must be %t", l.Endpoint, l.Sees, l.SNAT, snat)
		}
		return
	}
	l.Difference = fmt.Sprintf("%s is no endpoint for it: %s", l.Endpoint, verdictText(e.Outcome, e.Endpoints))
}

// FromHost reports whether this node itself is the client.
func (e Explanation) FromHost() bool {
	return slices.ContainsFunc(e.Steps, func(s oracle.Step) bool {
		return s.About == oracle.AboutOrigin && s.Result == model.FromHost.String()
	})
}

// unknownOutcome is that of a packet that was not seen.
const unknownOutcome = "unknown"

// Seen reports whether a packet was seen.
func (l *Live) Seen() bool { return l.Outcome != unknownOutcome }

// Unseen is the result without a packet.
func Unseen() Live { return Live{Outcome: unknownOutcome} }

// Follow answers a question by what read returns: the fate of its packet in the data
// plane, given the ports of its Service.
func Follow(s Subject, q oracle.Question, read func([]*model.Port, oracle.Packet) (dataplane.Trace, error)) (Trace, oracle.Packet, error) {
	e, ports, err := s.explain(q)
	if err != nil {
		return Trace{}, e.Packet, err
	}
	found, err := read(ports, e.Packet)
	if err != nil {
		return Trace{}, e.Packet, err
	}
	t := Trace{
		Explanation: s.explanation(e, ports), Installed: found.Installed.Fate.String(), Reaches: targets(found.Installed),
		Others: found.Others, Deciding: found.Deciding, Objects: found.Objects, TookMS: float64(found.Took.Microseconds()) / 1000,
	}
	for _, d := range found.Differences {
		t.Differences = append(t.Differences, differenceOf(d))
	}
	switch {
	case len(found.Opaque) > 0:
		t.Verdict, t.Installed, t.Reaches = NotKnown, "unknown", nil
	case found.Installed.Same(e.Outcome):
		t.Verdict = AsExplained
	case found.Installed.Same(found.Programmed):
		t.Verdict, t.Gap = ByGap, s.gapText(e)
	default:
		t.Verdict = NotSame
	}
	return t, e.Packet, nil
}

// gapText reports what the mode cannot do for a packet.
func (s *Subject) gapText(e oracle.Explanation) string {
	if e.Port != nil {
		for _, g := range s.Gaps[e.Port.ID] {
			return gap(e.Port, g)
		}
	}
	return "mode " + s.Mode + " does this for all Services"
}

// OK reports whether the data plane agrees with policy.
func (t Trace) OK() bool {
	return (t.Verdict == AsExplained || t.Verdict == ByGap) && (t.Live == nil || t.Live.Difference == "")
}

// Write prints a trace for people.
func (t Trace) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s/%s on node %s, mode %s: %d objects read back in %.1f ms\n\n", t.From, t.To, t.Protocol, t.Node, t.Mode, t.Objects, t.TookMS)
	fmt.Fprintf(&b, "must:  %s\n", verdictText(t.Outcome, t.Endpoints))
	fmt.Fprintf(&b, "does:  %s\n", verdictText(t.Installed, t.Reaches))
	switch t.Verdict {
	case AsExplained:
		b.WriteString("\nSAME: the data plane does what it should\n")
	case ByGap:
		fmt.Fprintf(&b, "\nGAP: the data plane is as this mode programs it, which cannot do all: %s\n", printable.Text(t.Gap))
	case NotKnown:
		b.WriteString("\nUNKNOWN: an object in its way has content that tandem did not write\n")
	default:
		b.WriteString("\nDIFFERS: the data plane does something else\n")
	}
	t.differences(&b)
	for _, o := range t.Others {
		fmt.Fprintf(&b, "! %s\n", printable.Text(o))
	}
	if t.Live != nil {
		t.Live.write(&b)
	}
	if t.Failing != "" {
		fmt.Fprintf(&b, "FAILING: this is not programmed: %s\n", printable.Text(t.Failing))
	}
	_, err := io.WriteString(w, printable.Lines(b.String()))
	return err
}

func (l *Live) write(b *strings.Builder) {
	if !l.Seen() {
		b.WriteString("\nlive:  no such packet was seen\n")
		return
	}
	fmt.Fprintf(b, "\nlive:  %s from %s", l.Outcome, l.Client)
	if l.Endpoint != "" {
		fmt.Fprintf(b, " to %s, which sees %s", l.Endpoint, l.Sees)
	}
	fmt.Fprintf(b, ", after %.1f ms\n", l.TookMS)
	for _, p := range l.Path {
		fmt.Fprintf(b, "       %s\n", printable.Text(p))
	}
	if l.Difference != "" {
		fmt.Fprintf(b, "\nLIVE DIFFERS: %s\n", printable.Text(l.Difference))
	}
}

func (t Trace) differences(b *strings.Builder) {
	for i, d := range t.Differences {
		if i == shown {
			fmt.Fprintf(b, "and %d more objects (-o json)\n", len(t.Differences)-shown)
			return
		}
		decides := ""
		if i < t.Deciding {
			decides = ": this alone changes the outcome"
		}
		d.write(b, decides)
	}
}

func (d Difference) write(b *strings.Builder, more string) {
	fmt.Fprintf(b, "%-10s %s%s\n", d.State, printable.Text(d.Object), more)
	for _, side := range [][2]string{{"wanted", d.Wanted}, {"found", d.Found}} {
		for part := range strings.SplitSeq(side[1], "\n") {
			if part != "" {
				fmt.Fprintf(b, "           %-7s %s\n", side[0], printable.Text(part))
				side[0] = ""
			}
		}
	}
}

// verdictText is a fate in a few words.
func verdictText(fate string, to []Target) string {
	if fate != oracle.Forward.String() {
		return fate
	}
	text := fate + " to"
	for i, t := range to {
		if i == 4 {
			return fmt.Sprintf("%s and %d more", text, len(to)-4)
		}
		text += " " + t.Address
		if t.SNAT {
			text += " (SNAT)"
		}
	}
	return text
}
