// SPDX-License-Identifier: Apache-2.0

// Package monitor shows new connections to Services, and packets that were rejected, as they come.
//
//	conntrack, relays ──────new connections──┐
//	nf_tables' traces, relays ──rejections───┴─Seen─▶ Of ─Event─▶ Share ─▶ Ring ─Since─▶ tandem monitor
//
// Data planes say what they did with which packet; what Service that was to, and why a packet was rejected, follows
// from what is resolved. A Source is open only while there are clients, and costs nothing otherwise. It is looked at
// Every so often. Of a look at most Most events are kept, of which each namespace has its share: one with many
// connections does not displace those of others. What is left out is counted in the place of its events.
package monitor

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// The bounds of what is shown.
const (
	Every = 100 * time.Millisecond // between looks at a Source
	Most  = 100                    // events of a look, and as many counts of those that are left out
	Read  = 1000                   // of what a Source has, at a look
	kept  = 5000                   // events, for those who ask: those of 2.5 seconds, or more
)

// Seen is what a data plane has done with the first packet of a connection.
type Seen struct {
	At     time.Time
	Proto  model.Proto
	Client netip.AddrPort
	Iface  string         // that the packet came by; empty where that is not known
	To     netip.AddrPort // as the client sent it; not valid where a relay knows the Port alone
	Port   model.PortID   // of a relay

	Fate     oracle.Fate
	Lost     bool           // it went no further: of reject and drop it is what policy says
	Endpoint netip.AddrPort // with Forward
	Rule     string         // that rejected it, where that is known
}

// Source shows what was seen.
type Source interface {
	// Look calls each for what was seen since the last call, Read of it at most, and reports whether there was more.
	Look(each func(Seen)) (more bool, err error)
	Close() error
}

// Frontend is one that may reject packets. The address of a node port is unspecified.
type Frontend struct {
	Namespace string
	Proto     model.Proto
	At        netip.AddrPort
}

// Tracer is a Source that shows rejections of these frontends alone, but for those beyond its bounds.
type Tracer interface {
	Trace(ctx context.Context, all []Frontend) error
}

// Rejecting are the frontends of some ports that may reject packets.
func Rejecting(ports []*model.Port) (all []Frontend) {
	for _, p := range ports {
		for i := range p.Frontends {
			f := &p.Frontends[i]
			if f.Restricted || slices.ContainsFunc(f.On[:], func(a model.Action) bool { return a.Verdict != model.Balance }) {
				all = append(all, Frontend{p.ID.Service.Namespace, p.ID.Proto, f.At})
			}
		}
	}
	return all
}

// Event is a connection to a Service, or a count of those that are left out. Its JSON form is stable.
type Event struct {
	Number    uint64    `json:"number"` // larger than those of all events before
	At        time.Time `json:"at"`
	Namespace string    `json:"namespace,omitempty"`
	Service   string    `json:"service,omitempty"` // namespace/name
	Port      string    `json:"port,omitempty"`    // its name
	Protocol  string    `json:"protocol,omitempty"`
	Client    string    `json:"client,omitempty"`
	Frontend  string    `json:"frontend,omitempty"` // what the client connected to; absent where only the port is known
	Kind      string    `json:"kind,omitempty"`     // of frontend
	Verdict   string    `json:"verdict,omitempty"`  // forward, reject or drop
	Endpoint  string    `json:"endpoint,omitempty"`
	Why       string    `json:"why,omitempty"`  // it was rejected or dropped
	Rule      string    `json:"rule,omitempty"` // that did it

	// LeftOut is set in place of connections that are not shown: of a namespace, or, with none, of many.
	LeftOut int `json:"leftOut,omitempty"`
	// Unread means that the kernel reported more than was read; how much is unknown.
	Unread bool `json:"unread,omitempty"`
}

// Of is the event of what was seen, on a host with these ports; ok is false where it was to none of them.
func Of(host *model.Host, ports []*model.Port, s Seen) (e Event, ok bool) {
	e = Event{At: s.At, Protocol: s.Proto.String(), Client: s.Client.String(), Verdict: s.Fate.String(), Rule: s.Rule}
	if s.Endpoint.IsValid() {
		e.Endpoint = s.Endpoint.String()
	}
	of := s.Port
	switch {
	case !s.To.IsValid():
		if s.Fate != oracle.Forward {
			e.Why = "source ranges or traffic policy, or no endpoint"
		}
	case s.Fate == oracle.Forward:
		port, front := oracle.Find(host, ports, packet(host, s))
		if front == nil {
			return e, false
		}
		of, e.Kind = port.ID, front.Kind.String()
	default:
		x := oracle.Explain(host, ports, packet(host, s))
		if x.Port == nil {
			return e, false
		}
		if of, e.Kind = x.Port.ID, x.Outcome.Kind.String(); x.Frontend == nil { // another port of a cluster IP
			of.Name = ""
		}
		if s.Lost && x.Outcome.Fate == oracle.Reject {
			e.Verdict = x.Outcome.Fate.String()
		}
		if e.Why = x.Port.WhyText(x.Outcome.Why); x.Outcome.Fate != oracle.Reject && x.Outcome.Fate != oracle.Drop {
			e.Why = "not by policy, which says " + x.Outcome.Fate.String()
		}
	}
	if s.To.IsValid() {
		e.Frontend = s.To.String()
	}
	e.Namespace, e.Service, e.Port = of.Service.Namespace, of.Service.String(), of.Name
	return e, true
}

// packet is what was seen as policy knows it. Where the interface of arrival is unknown, the source address decides.
func packet(host *model.Host, s Seen) oracle.Packet {
	p := oracle.Packet{Src: s.Client.Addr(), Sport: s.Client.Port(), Proto: s.Proto, Dst: s.To, Iface: s.Iface}
	if p.Iface == "" && !slices.Contains(host.IPs, p.Src) && !p.Src.IsLoopback() {
		p.Iface = oracle.Uplink
	}
	return p
}

// Share is what is kept of the events of a look, in their order, and counts of the rest, the largest first. Of namespaces that
// have more than their share each keeps as many.
func Share(all []Event, at time.Time) []Event {
	if len(all) <= Most {
		return all
	}
	has := map[string]int{}
	for i := range all {
		has[all[i].Namespace]++
	}
	most := slices.SortedFunc(maps.Keys(has), func(a, b string) int { return cmp.Or(cmp.Compare(has[b], has[a]), strings.Compare(b, a)) })
	out, left := []Event{}, model.Shares(has, Most) // to keep
	for name, n := range left {
		has[name] -= n
	}
	for i := range all {
		if n := all[i].Namespace; left[n] > 0 {
			left[n]--
			out = append(out, all[i])
		}
	}
	others := 0
	for _, name := range most {
		switch {
		case has[name] == 0:
		case len(out) < 2*Most-1:
			out = append(out, Event{At: at, Namespace: name, LeftOut: has[name]})
		default:
			others += has[name]
		}
	}
	if others > 0 {
		out = append(out, Event{At: at, LeftOut: others})
	}
	return out
}

// Part has the events since the previous request.
type Part struct {
	Begun     time.Time // since when there may be events
	Next      uint64    // the number of the next one
	Events    []Event
	Forgotten uint64   // events, since it was asked too late
	NotShown  []string // what there are no events of
}

// Ring has the last events. See NewRing.
type Ring struct {
	begun time.Time
	next  uint64
	all   []Event // the event of number n in place n % kept
}

// NewRing returns an empty one. Its numbers begin with the time, in microseconds: they are larger than those of one before, in
// the same process or in another.
func NewRing(begun time.Time) *Ring { return &Ring{begun: begun, next: uint64(begun.UnixMicro())} }

// Add adds events, and numbers them.
func (r *Ring) Add(all ...Event) {
	if r.all == nil && len(all) > 0 {
		r.all = make([]Event, kept)
	}
	for _, e := range all {
		e.Number = r.next
		r.all[r.next%kept] = e
		r.next++
	}
}

// Since returns the events from a number on; of 0 none, but the number of the next one.
func (r *Ring) Since(from uint64) Part {
	p := Part{Begun: r.begun, Next: r.next}
	if from == 0 {
		return p
	}
	first := uint64(r.begun.UnixMicro())
	from = max(from, first) // a number of a ring before
	if oldest := max(first, r.next-min(r.next, kept)); from < oldest {
		p.Forgotten, from = oldest-from, oldest
	}
	for n := from; n < r.next; n++ {
		p.Events = append(p.Events, r.all[n%kept])
	}
	return p
}
