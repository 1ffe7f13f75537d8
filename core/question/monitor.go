// SPDX-License-Identifier: Apache-2.0

package question

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Monitor are the connections to Services that a node has seen. Its JSON form is stable.
type Monitor struct {
	Node   string          `json:"node" nodes:"own"`
	Mode   string          `json:"mode"`
	Since  time.Time       `json:"since" nodes:"-"` // that there may be events
	Next   uint64          `json:"next" nodes:"-"`  // what to ask for next
	Events []monitor.Event `json:"events" nodes:"-"`
	// NotShown are what this node cannot show.
	NotShown []string `json:"notShown,omitempty"`
	// Forgotten counts events of all Services, since it was asked too late.
	Forgotten uint64 `json:"forgotten,omitempty" nodes:"-"`
}

// MonitorRequest is what tandem monitor asks, again and again.
type MonitorRequest struct {
	Filter   Filter   `json:"filter,omitzero"`
	From     string   `json:"from,omitempty"` // an address or a range of clients
	Verdicts []string `json:"verdicts,omitempty"`
	Next     uint64   `json:"next,omitempty"` // 0: nothing that was before
}

// Verdicts are those of events.
func Verdicts() []string {
	return []string{oracle.Forward.String(), oracle.Reject.String(), oracle.Drop.String()}
}

// Check reports what is wrong with a request.
func (r *MonitorRequest) Check() error {
	if _, err := r.clients(); err != nil {
		return err
	}
	for _, v := range r.Verdicts {
		if !slices.Contains(Verdicts(), v) {
			return fmt.Errorf("verdict %.40q: choose of %s", v, strings.Join(Verdicts(), ", "))
		}
	}
	return r.Filter.Check()
}

// clients are those of From; not valid for all.
func (r *MonitorRequest) clients() (p netip.Prefix, err error) {
	if r.From == "" {
		return p, nil
	}
	if a, err := netip.ParseAddr(r.From); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	if p, err = netip.ParsePrefix(r.From); err != nil {
		return p, fmt.Errorf("from %.60q: want the address of a client, or a range such as 10.244.0.0/16", r.From)
	}
	return p.Masked(), nil
}

// WatchConnections is the question of tandem monitor. A running proxy looks at connections as long as it is asked.
func WatchConnections() Verb[MonitorRequest, Monitor] {
	return Verb[MonitorRequest, Monitor]{Name: "monitor", Answer: seen, Needs: func(r MonitorRequest) Needs { return Needs{Events: &r.Next} }}
}

func seen(_ context.Context, d *Document, r MonitorRequest) (Monitor, error) {
	if d.Seen == nil {
		return Monitor{}, errors.New("only a running tandem sees connections")
	}
	clients, err := r.clients()
	if err == nil {
		err = r.Check()
	}
	if err != nil {
		return Monitor{}, err
	}
	out := Monitor{
		Node: d.Facts.Node, Mode: d.Facts.Mode, Since: d.Seen.Begun, Next: d.Seen.Next, NotShown: d.Seen.NotShown,
		Forgotten: d.Seen.Forgotten, Events: []monitor.Event{},
	}
	for _, e := range d.Seen.Events {
		if r.selects(e, clients) {
			out.Events = append(out.Events, e)
		}
	}
	return out, nil
}

// selects reports whether an event is asked for. What is left out may be, unless it is of another namespace.
func (r *MonitorRequest) selects(e monitor.Event, clients netip.Prefix) bool {
	if e.LeftOut > 0 || e.Unread {
		return e.Namespace == "" || r.Filter.Namespace == "" || e.Namespace == r.Filter.Namespace
	}
	if clients.IsValid() {
		client, err := netip.ParseAddrPort(e.Client)
		if err != nil || !clients.Contains(client.Addr()) {
			return false
		}
	}
	return r.Filter.Named(e.Service) && (len(r.Verdicts) == 0 || slices.Contains(r.Verdicts, e.Verdict))
}
