// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Mode is the iptables mode.
func Mode() dataplane.Mode {
	return onLinux(dataplane.Mode{Name: Name, System: "linux", Conntrack: true, Plan: plan})
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(optionsOf(c)), host, ports, Script)
}

// Script renders objects as the input of iptables-restore --noflush, followed by that of
// ip6tables-restore.
func Script(objects map[Key]Value) string {
	var scripts [2][2]xtables.Script
	keys := slices.SortedFunc(maps.Keys(objects), compareKeys)
	for len(keys) > 0 {
		id := keys[0].chainID
		var rules []Value
		for ; len(keys) > 0 && keys[0].chainID == id; keys = keys[1:] {
			rules = append(rules, objects[keys[0]])
		}
		s := &scripts[id.Family][id.Table]
		if classOf(id.Chain) == unowned {
			replaceRules(s, id.Chain, nil, rules)
		} else {
			s.Rewrite(id.Chain, rules...)
		}
	}
	var b strings.Builder
	for f := range scripts {
		b.WriteString("# " + xtables.RestoreCommand(model.Family(f)) + " --noflush\n")
		for t := range scripts[f] {
			if s := &scripts[f][t]; !s.Empty() {
				b.Write(s.Text(xtables.Table(t)))
			}
		}
	}
	return b.String()
}

func (*Compiler) Evaluate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return NewSim(objects, host).Decide
}

func (*Compiler) Text(k Key, v Value) string {
	if k.Rank == rankDisorder {
		return "its rules in another order"
	}
	return strings.TrimSpace(v.String())
}

// Opaque reports whether an object has unparsed rules, which match nothing in Evaluate, or is
// a wrong order of rules.
func (*Compiler) Opaque(k Key, v Value) bool {
	if k.Rank == rankDisorder {
		return true
	}
	for r := range v.All() {
		if r.Unparsed != "" {
			return true
		}
	}
	return false
}

// Sim runs packets through objects as the kernel would, but follows every branch of a
// random or stateful match.
type Sim struct {
	rules *xtables.Sim
	host  *model.Host
}

// NewSim returns a simulator of the objects on a host. It keeps both, unchanged.
func NewSim(objects map[Key]Value, host *model.Host) *Sim {
	keys := map[chainID][]Key{}
	for k := range objects {
		keys[k.chainID] = append(keys[k.chainID], k)
	}
	rules := func(id chainID) (rules []xtables.Rule) {
		slices.SortFunc(keys[id], compareKeys)
		for _, k := range keys[id] {
			rules = slices.AppendSeq(rules, objects[k].All())
		}
		return rules
	}
	local := func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(host.IPs, a) }
	return &Sim{&xtables.Sim{Rules: rules, Local: local}, host}
}

// Decide returns what happens to a packet: every endpoint that it may reach. If
// branches disagree, which correct rules never do, it returns the fate of a branch
// that does not forward.
func (s *Sim) Decide(p oracle.Packet) oracle.Outcome {
	out := oracle.Outcome{Fate: oracle.Forward}
	found := map[netip.AddrPort]oracle.Target{}
	hook := xtables.PreRouting
	if p.Iface == "" {
		hook = xtables.Output
	}
	first := xtables.Packet{Src: p.Src, Dst: p.Dst, Proto: p.Proto, In: p.Iface, Odds: 1}
	for _, e := range s.rules.Run(xtables.NAT, hook, first) {
		for _, f := range s.filter(e.Packet) {
			switch {
			case f.By == xtables.Reject:
				out.Fate = oracle.Reject
			case f.By == xtables.Drop:
				out.Fate = oracle.Drop
			case !f.DNATed:
				out.Fate = oracle.Pass
			default:
				found[f.Dst] = oracle.Target{Addr: f.Dst, SNAT: s.masqueraded(f.Packet), Share: found[f.Dst].Share + f.Odds}
			}
		}
	}
	out.Endpoints = slices.Collect(maps.Values(found))
	slices.SortFunc(out.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
	return out
}

// filter returns what happens to a packet after destination NAT.
func (s *Sim) filter(p xtables.Packet) (ends []xtables.End) {
	here := s.rules.Local(p.Dst.Addr())
	switch {
	case p.In == "" && here: // it goes out by the loopback interface and comes in again
		for _, e := range s.rules.Run(xtables.Filter, xtables.Output, p) {
			if e.By == nil || e.By == xtables.Accept {
				ends = append(ends, s.rules.Run(xtables.Filter, xtables.Input, e.Packet)...)
			} else {
				ends = append(ends, e)
			}
		}
		return ends
	case p.In == "":
		return s.rules.Run(xtables.Filter, xtables.Output, p)
	case here:
		return s.rules.Run(xtables.Filter, xtables.Input, p)
	}
	return s.rules.Run(xtables.Filter, xtables.Forward, p)
}

// masqueraded reports whether a packet leaves with the host's address. Packets to the
// host itself never reach postrouting or, if they come from the host too, have its
// address already.
func (s *Sim) masqueraded(p xtables.Packet) bool {
	if slices.Contains(s.host.IPs, p.Dst.Addr()) {
		return false
	}
	return slices.ContainsFunc(s.rules.Run(xtables.NAT, xtables.PostRouting, p), xtables.End.Masqueraded)
}

// dispatches returns the frontend of a rule that leads to the chains of a port.
func dispatches(f model.Family, chain string, l xtables.Line) (at netip.AddrPort, proto model.Proto, ok bool) {
	if classOf(chain) != shared {
		return at, proto, false
	}
	r := l.Rule()
	if classOf(r.Chain()) != whole || r.Ports.First == 0 || r.Ports.First != r.Ports.Last {
		return at, proto, false
	}
	addr := f.Unspecified()
	if r.Dst.Prefix.IsValid() {
		addr = r.Dst.Prefix.Addr()
	}
	return netip.AddrPortFrom(addr, r.Ports.First), r.Proto, true
}

// packetCounter sums up the packets that the rule for invalid packets has dropped, of all
// families and across resets of its counters. It is safe for concurrent use.
type packetCounter struct {
	families []model.Family
	read     func(context.Context, chainID, xtables.Rule) (uint64, error)
	log      *slog.Logger

	mu       sync.Mutex
	sum      uint64
	last     [2]uint64 // by family: the rule's counter as last read
	readAt   time.Time
	readTook time.Duration
	failing  bool // the last reading failed
}

// The legacy variant copies a whole table to list one chain of it: with 10,000
// Services the nat table takes 80 ms. So counters are read for at most 1/packetsShare
// of the time, and within packetsWait; a caller in between gets the sums of the last
// reading.
const (
	packetsShare = 20
	packetsWait  = 2 * time.Second
)

// packets returns the sums, as of now or the last reading. A counter that cannot be
// read keeps its value; the first failure is logged.
func (c *packetCounter) packets() dataplane.Packets {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) < packetsShare*c.readTook {
		return dataplane.Packets{Invalid: c.sum}
	}
	ctx, cancel := context.WithTimeout(context.Background(), packetsWait)
	defer cancel()
	start := time.Now()
	var failed error
	for _, f := range c.families {
		n, err := c.read(ctx, filter(f, chainForward), invalid())
		if err == nil {
			c.count(f, n)
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil && !c.failing {
		c.log.Warn("reading packet counters failed; their metric keeps its value", "mode", Name, "err", failed)
	}
	c.failing = failed != nil
	c.readAt, c.readTook = time.Now(), time.Since(start)
	return dataplane.Packets{Invalid: c.sum}
}

// count adds the increase of a rule's counter since it was last read. A lower value
// means that it was reset.
func (c *packetCounter) count(f model.Family, n uint64) {
	last := c.last[f]
	if n < last {
		last = 0
	}
	c.sum += n - last
	c.last[f] = n
}
