// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"io"
	"net/netip"
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
