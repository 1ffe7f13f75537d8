// SPDX-License-Identifier: Apache-2.0

// Package oracle states what must happen to a packet. It is the reference that
// every backend's simulator and every real kernel is compared with in tests:
// slow, small and obvious, where the data planes are fast.
package oracle

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Packet is the first packet of a connection.
type Packet struct {
	Src   netip.Addr
	Iface string // the interface it arrives by; empty when the host itself sends it
	Proto model.Proto
	Dst   netip.AddrPort
	Sport uint16 // 0 is any
}

// Uplink is the Iface of packets from other machines, where only that matters.
const Uplink = "eth0"

// Outcome is what may happen to a Packet.
type Outcome struct {
	Fate      Fate
	Endpoints []Target // for Forward: all endpoints it may reach, in address order

	// For people; not part of the comparison between data planes.
	Port model.PortID
	Kind model.Kind
	Why  model.Reason
}

// Target is an endpoint that a packet may reach.
type Target struct {
	Addr netip.AddrPort `json:"address" nodes:"key"`
	Pod  string         `json:"pod,omitempty"` // its name, for people; of the Service's namespace
	SNAT bool           `json:"snat"`          // it sees an address of the host instead of the client's

	// Share is how much of all such packets it gets; 0 where that is not known.
	Share float64 `json:"-"`
}

// Fate is the kind of an Outcome.
type Fate uint8

// The fates.
const (
	Pass    Fate = iota // not for a Service: unchanged
	Forward             // to one of Endpoints
	Reject              // refused
	Drop                // no answer
)

// String returns the fate as scenarios spell it.
func (f Fate) String() string { return [...]string{"pass", "forward", "reject", "drop"}[f] }

// ParseFate reads what String has written.
func ParseFate(text string) (Fate, error) {
	for _, f := range []Fate{Pass, Forward, Reject, Drop} {
		if f.String() == text {
			return f, nil
		}
	}
	return Pass, fmt.Errorf("unknown outcome %.20q", text)
}

// Decide returns what must happen to a packet, given everything that is to be
// programmed. It walks all ports.
func Decide(host *model.Host, ports []*model.Port, p Packet) Outcome {
	w := walk{host: host, ports: ports, report: func(About, string, string, ...any) {}}
	out, _, _ := w.decide(p)
	return out
}

// Find returns the port and the frontend that a packet is for; nil where there is none.
func Find(host *model.Host, ports []*model.Port, p Packet) (*model.Port, *model.Frontend) {
	return walk{host: host, ports: ports, report: func(About, string, string, ...any) {}}.find(p)
}

// walk follows one packet, and reports each decision.
type walk struct {
	host   *model.Host
	ports  []*model.Port
	report func(about About, result, why string, args ...any)
}

func (w walk) decide(p Packet) (Outcome, *model.Port, *model.Frontend) {
	origin := w.origin(p)
	port, front := w.find(p)
	if front == nil {
		out, of := w.unclaimed(p)
		return out, of, nil
	}
	out := Outcome{Port: port.ID, Kind: front.Kind}
	if !w.admits(front, p) {
		out.Fate, out.Why = Drop, model.WhyOutsideRanges
		return out, port, front
	}
	act := front.On[origin]
	out.Why = act.Why
	w.report(AboutPolicy, act.Verdict.String(), "%s", port.WhyText(act.Why))
	switch act.Verdict {
	case model.Reject:
		out.Fate = Reject
	case model.Drop:
		out.Fate = Drop
	case model.Balance:
		out.Fate = Forward
		out.Endpoints = w.targets(port, act, p)
	}
	return out, port, front
}

// origin is where a packet is from. Pods come first: the host's own address
// inside the pods' range counts as a pod.
func (w walk) origin(p Packet) model.Origin {
	o := Origin(w.host, p)
	switch o {
	case model.FromPod:
		w.report(AboutOrigin, o.String(), "%s belongs to a pod of this node, by %s", p.Src, podRule(w.host.Pods))
	case model.FromHost:
		w.report(AboutOrigin, o.String(), "this node itself sends it")
	default:
		w.report(AboutOrigin, o.String(), "%s is neither a pod of this node nor the node itself", p.Src)
	}
	return o
}

func podRule(m model.PodMatch) string {
	switch {
	case m.Interface != "":
		return "the bridge " + m.Interface
	case m.Prefix != "":
		return "the interface name " + m.Prefix + "*"
	}
	return fmt.Sprintf("its range %v", m.CIDRs)
}

// find returns the frontend a packet is for. Addresses of Services come before
// node ports, which answer on this host's own addresses only.
func (w walk) find(p Packet) (*model.Port, *model.Frontend) {
	if port, f := at(w.ports, p.Proto, p.Dst); f != nil {
		w.report(AboutFrontend, f.Kind.String(), "%s/%s is an address of %s", p.Dst, p.Proto, port.ID)
		return port, f
	}
	own := slices.Contains(w.host.IPs, p.Dst.Addr()) || p.Dst.Addr().IsLoopback()
	port, f := at(w.ports, p.Proto, netip.AddrPortFrom(model.FamilyOf(p.Dst.Addr()).Unspecified(), p.Dst.Port()))
	switch {
	case f == nil:
		return nil, nil
	case !own:
		w.report(AboutFrontend, "none", "%d/%s is a node port of %s, but %s is no address of this node", p.Dst.Port(), p.Proto, port.ID, p.Dst.Addr())
		return nil, nil
	case !w.host.NodePorts.Answers(p.Dst.Addr(), p.Proto):
		w.report(AboutFrontend, "none", "%d/%s is a node port of %s, but node ports do not answer on %s here", p.Dst.Port(), p.Proto, port.ID, p.Dst.Addr())
		return nil, nil
	}
	w.report(AboutFrontend, f.Kind.String(), "%d/%s is a node port of %s", p.Dst.Port(), p.Proto, port.ID)
	return port, f
}

// unclaimed is the outcome where there is no frontend. A cluster IP rejects all its other
// ports, since it has no other use. An unused address in a ServiceCIDR
// is dropped: the client may know of its Service sooner than this
// node, and will retry. All other packets pass.
func (w walk) unclaimed(p Packet) (Outcome, *model.Port) {
	say := func(result string, why model.Reason) {
		w.report(AboutPolicy, result, "%s", why.Text())
	}
	for _, port := range w.ports {
		for _, f := range port.Frontends {
			if f.Kind == model.KindClusterIP && f.At.Addr() == p.Dst.Addr() {
				w.report(AboutFrontend, "none", "%s is the cluster IP of %s, which has no port %d/%s", p.Dst.Addr(), port.ID.Service, p.Dst.Port(), p.Proto)
				say("reject", model.WhyNoSuchPort)
				return Outcome{Fate: Reject, Port: port.ID, Kind: f.Kind, Why: model.WhyNoSuchPort}, port
			}
		}
	}
	w.report(AboutFrontend, "none", "no Service on this node has %s/%s", p.Dst, p.Proto)
	if model.Contains(w.host.ServiceCIDRs, p.Dst.Addr()) {
		say("drop", model.WhyUnallocated)
		return Outcome{Fate: Drop, Why: model.WhyUnallocated}, nil
	}
	say("pass", model.WhyNotOurs)
	return Outcome{Fate: Pass, Why: model.WhyNotOurs}, nil
}

// admits checks the source ranges.
func (w walk) admits(f *model.Frontend, p Packet) bool {
	switch {
	case !f.Restricted:
		return true
	case model.Contains(f.Allow, p.Src):
		w.report(AboutRanges, "allowed", "%s is inside loadBalancerSourceRanges", p.Src)
		return true
	}
	w.report(AboutRanges, "drop", "%s: %s", p.Src, model.WhyOutsideRanges.Text())
	return false
}

// targets are the endpoints of a pool, in address order, and what they see.
func (w walk) targets(port *model.Port, act model.Action, p Packet) (all []Target) {
	if port.SessionAffinity > 0 {
		w.report(AboutAffinity, "one endpoint a client", "sessionAffinity: ClientIP: connections of %s stay with their endpoint for %s after the last one", p.Src, port.SessionAffinity)
	}
	n := len(act.Pool.Endpoints)
	share := "each gets an even share of new connections"
	if act.Pool.Table != nil {
		share = "each gets its share of new connections, by weight"
	}
	w.report(AboutEndpoints, fmt.Sprintf("%d", n), "%s", share)
	if act.SNAT {
		w.report(AboutSNAT, "SNAT", "endpoints see an address of this node, so that answers come back through it")
	} else {
		w.report(AboutSNAT, "kept", "endpoints see the client's address")
	}
	for i, e := range act.Pool.Endpoints {
		hairpin := w.host.NeedsHairpinSNAT(e) && e.Addr.Addr() == p.Src
		here := slices.Contains(w.host.IPs, e.Addr.Addr())
		all = append(all, Target{Addr: e.Addr, SNAT: hairpin || act.SNAT && !here, Share: act.Pool.Share(i)})
		switch {
		case hairpin && !act.SNAT:
			w.report(AboutSNAT, "SNAT", "hairpin: %s is the client itself, and would not take an answer from its own address", e.Addr)
		case here && act.SNAT:
			w.report(AboutSNAT, "kept", "%s has an address of this node: answers need no way back", e.Addr)
		}
	}
	slices.SortFunc(all, func(a, b Target) int { return a.Addr.Compare(b.Addr) })
	return all
}

// Origin returns where a packet is from. Pods come first: the host's own address
// inside the pods' range counts as a pod.
func Origin(host *model.Host, p Packet) model.Origin {
	switch {
	case host.Pods.Match(p.Src, p.Iface):
		return model.FromPod
	case p.Iface == "":
		return model.FromHost
	}
	return model.FromOutside
}

func at(ports []*model.Port, proto model.Proto, at netip.AddrPort) (*model.Port, *model.Frontend) {
	for _, port := range ports {
		if port.ID.Proto != proto {
			continue
		}
		for i := range port.Frontends {
			if port.Frontends[i].At == at {
				return port, &port.Frontends[i]
			}
		}
	}
	return nil, nil
}

// Same reports whether two outcomes are the same to the packet.
func (o Outcome) Same(b Outcome) bool {
	return o.Fate == b.Fate && slices.EqualFunc(o.Endpoints, b.Endpoints, func(x, y Target) bool {
		return x.Addr == y.Addr && x.SNAT == y.SNAT && SameShare(x.Share, y.Share)
	})
}

// SameShare reports whether two shares of connections differ by 1 % at most, as far
// as both are known.
func SameShare(x, y float64) bool {
	const tolerance = 0.01
	return x == 0 || y == 0 || math.Abs(x-y) <= tolerance
}

// Explanation is an Outcome, and how it came about. Decide and Explain are one
// implementation.
type Explanation struct {
	Packet   Packet
	Outcome  Outcome
	Origin   model.Origin
	Port     *model.Port     // that the packet is for; nil for none
	Frontend *model.Frontend // of Port; nil for none, also where another port of its address is meant
	Steps    []Step
}

// Step is one decision on the way of a packet.
type Step struct {
	About  About  `json:"step" nodes:"key"`
	Result string `json:"result"` // the decision
	Why    string `json:"why"`    // and on what grounds
}

// About names what a Step decides.
type About string

// The steps, in their order. Not every packet takes all of them.
const (
	AboutOrigin    About = "origin"        // pod, host or outside
	AboutFrontend  About = "frontend"      // whose address it is
	AboutRanges    About = "source ranges" // loadBalancerSourceRanges
	AboutPolicy    About = "policy"        // balance, reject, drop
	AboutAffinity  About = "affinity"      // sessionAffinity: ClientIP
	AboutEndpoints About = "endpoints"     // the pool
	AboutSNAT      About = "source"        // what address endpoints see
)

// Explain returns what must happen to a packet, given everything that is to be
// programmed, and why. It walks all ports.
func Explain(host *model.Host, ports []*model.Port, p Packet) Explanation {
	e := Explanation{Packet: p, Origin: Origin(host, p)}
	w := walk{host: host, ports: ports, report: func(about About, result, why string, args ...any) {
		e.Steps = append(e.Steps, Step{about, result, fmt.Sprintf(why, args...)})
	}}
	e.Outcome, e.Port, e.Frontend = w.decide(p)
	return e
}
