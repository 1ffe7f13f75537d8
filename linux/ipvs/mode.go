// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Mode is the IPVS mode.
func Mode() dataplane.Mode {
	return onLinux(dataplane.Mode{Name: Name, System: "linux", Conntrack: true, Unmarked: true, OnRequest: true, Fallback: "iptables", Plan: plan})
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	o := optionsOf(c)
	return dataplane.PlanOf(NewCompiler(o), host, ports, func(objects map[Key]Value) string { return Script(o, objects) })
}

// Script renders objects as the input of "ipset restore", "iptables-restore --noflush",
// "ip -batch" and "ipvsadm -R", one part after the other.
func Script(o Options, objects map[Key]Value) string {
	t := text{marks: fwmarksOf(bitsFor(o.Mark), objects), objects: objects}
	keys := slices.SortedFunc(maps.Keys(objects), compareKeys)
	var b strings.Builder
	part := func(title string, line func(Key, Value) string, kinds ...Kind) {
		fmt.Fprintf(&b, "# %s\n", title)
		for _, k := range keys {
			if slices.Contains(kinds, k.Kind) {
				b.WriteString(line(k, objects[k]))
			}
		}
		b.WriteByte('\n')
	}
	part("ipset restore", t.set, KindSet, kindEntry)
	for _, f := range model.Families() {
		if lines := t.tables(keys, f); lines != nil {
			fmt.Fprintf(&b, "# %s --noflush\n%s\n", xtables.RestoreCommand(f), lines)
		}
	}
	for _, f := range model.Families() {
		of := func(k Key, _ Value) string {
			if k.Family == f {
				return t.link(k)
			}
			return ""
		}
		part(fmt.Sprintf("ip -%d -batch", [...]int{4, 6}[f]), of, kindLink, kindRule, kindRoute, kindAddress)
	}
	t.dests = destinations(keys, objects)
	part("ipvsadm -R", t.server, kindServer)
	return b.String()
}

type text struct {
	marks   *fwmarks
	objects map[Key]Value
	dests   map[Key][]virtualserver.Destination // by virtual server
}

func destinations(keys []Key, objects map[Key]Value) map[Key][]virtualserver.Destination {
	of := map[Key][]virtualserver.Destination{}
	for _, k := range keys {
		if k.Kind == kindDest {
			of[k.serverOf()] = append(of[k.serverOf()], virtualserver.Destination{Addr: k.Peer.endpoint(), Weight: int(objects[k].Weight)})
		}
	}
	return of
}

func (t text) set(k Key, v Value) string {
	if k.Kind == KindSet {
		return definition(k).Text()
	}
	e := entryOf(k)
	if k.Set.marks() {
		m, _ := t.marks.entry(k, v) // a plan may have more than there are numbers
		e.Mark, e.MarkMask = m.Value, m.Mask
	}
	return definition(k).AddText(e)
}

func (t text) link(k Key) string {
	switch k.Kind {
	case kindLink:
		return "link add " + Link + " type dummy\n"
	case kindRoute:
		return fmt.Sprintf("route add local %s dev lo table %d\n", k.Dst.Addr(), routeTable)
	case kindAddress:
		return fmt.Sprintf("address add %s/%d dev %s\n", k.Dst.Addr(), k.Family.Bits(), Link)
	}
	return fmt.Sprintf("rule add priority %d fwmark 0x%x/0x%x table %d\n", routePriority, t.marks.service, t.marks.service, routeTable)
}

func (t text) server(k Key, v Value) string {
	id, _ := t.marks.id(k)
	return virtualserver.Text(id, v.Server, t.dests[k]...)
}

// tables renders the chains of a family as iptables-restore reads them.
func (t text) tables(keys []Key, f model.Family) []byte {
	var ops []ledger.Op[Key, Value]
	for _, k := range keys {
		if k.Kind == KindChain || k.Kind == kindJump {
			ops = append(ops, ledger.Op[Key, Value]{Key: k, New: t.objects[k]})
		}
	}
	return restoreText(f, ops)
}

// Sim runs the first packets of connections through objects as the kernel would: the
// rules as iptables gets them, then routing, then IPVS. It follows every choice that
// a scheduler could make.
type Sim struct {
	objects map[Key]Value
	host    *model.Host
	marks   *fwmarks
	servers virtualserver.Table
	weights map[virtualserver.ID]map[netip.AddrPort]float64 // of servers whose scheduler is rr or wrr
	ranges  map[SetID][]Key
	rules   *xtables.Sim
}

// NewSim returns a simulator of the objects on a host. It keeps both and changes
// neither. The options are those that the objects were compiled with.
func NewSim(o Options, objects map[Key]Value, host *model.Host) *Sim {
	s := &Sim{
		objects: objects, host: host, marks: fwmarksOf(bitsFor(o.Mark), objects),
		servers: virtualserver.Table{}, weights: map[virtualserver.ID]map[netip.AddrPort]float64{}, ranges: map[SetID][]Key{},
	}
	chains := map[xtables.ChainID]xtables.Rules{}
	s.rules = &xtables.Sim{Rules: func(id xtables.ChainID) []xtables.Rule { return slices.Collect(chains[id].All()) }, Local: s.local, Set: s.set}
	for k, v := range objects {
		switch {
		case k.Kind == kindServer:
			id, _ := s.marks.id(k)
			s.servers.Add(id)
		case k.Kind == kindDest:
			id, _ := s.marks.id(k.serverOf())
			s.servers.Add(id, k.Peer.endpoint())
			s.weigh(id, objects[k.serverOf()].Scheduler, k.Peer.endpoint(), v.Weight)
		case k.Kind == kindEntry && (k.Set.kind() == ipset.HashIPPortNet || k.Set.kind() == ipset.HashNet):
			s.ranges[k.Set] = append(s.ranges[k.Set], k)
		case k.Kind == KindChain:
			at := xtables.ChainID{Family: k.Family, Table: k.Chain.table(), Chain: k.Chain.name()}
			chains[at] = v.Rules
		}
	}
	return s
}

// weigh records the weight of a destination whose share does not depend on clients or
// connections: with the schedulers rr and wrr.
func (s *Sim) weigh(id virtualserver.ID, scheduler string, to netip.AddrPort, weight uint16) {
	if scheduler == "rr" {
		weight = 1
	} else if scheduler != "wrr" {
		return
	}
	if s.weights[id] == nil {
		s.weights[id] = map[netip.AddrPort]float64{}
	}
	s.weights[id][to] = float64(weight)
}

// Decide returns what happens to a packet: every endpoint that it may reach.
func (s *Sim) Decide(first oracle.Packet) oracle.Outcome {
	p := xtables.Packet{Src: first.Src, Dst: first.Dst, Proto: first.Proto, In: first.Iface}
	if s.hook(&p, mangleIn, mangleOut) == xtables.Drop {
		return oracle.Outcome{Fate: oracle.Drop}
	}
	if p.In != "" {
		filter, here := filterForward, s.delivered(p)
		if here {
			filter = filterIn
		}
		if end := s.hook(&p, filter, noChain); end == xtables.Reject || end == xtables.Drop || !here {
			return unserved(end)
		}
	}
	server, ok := s.servers.Find(p.Proto, p.Dst, p.Mark)
	switch {
	case !ok:
		return unserved(s.hook(&p, noChain, filterOut))
	case len(s.servers[server]) == 0:
		return oracle.Outcome{Fate: oracle.Reject} // IPVS answers "unreachable"
	}
	return s.forward(p, server)
}

// unserved is the outcome of a packet without a virtual server.
func unserved(filtered xtables.Target) oracle.Outcome {
	switch filtered {
	case xtables.Reject:
		return oracle.Outcome{Fate: oracle.Reject}
	case xtables.Drop:
		return oracle.Outcome{Fate: oracle.Drop}
	}
	return oracle.Outcome{Fate: oracle.Pass}
}

// hook runs the chain for arriving packets, or the one for packets that the host
// sends. Our chains have no random matches, so there is one result.
func (s *Sim) hook(p *xtables.Packet, in, out ChainID) xtables.Target {
	chain := in
	if p.In == "" {
		chain = out
	}
	if _, ok := s.objects[Key{Kind: kindJump, Family: familyOf(*p), Chain: chain}]; !ok {
		return nil
	}
	end := s.rules.Run(chain.table(), chain.name(), *p)[0]
	*p = end.Packet
	return end.By
}

func familyOf(p xtables.Packet) model.Family { return model.FamilyOf(p.Dst.Addr()) }

// delivered reports whether an arriving packet is delivered locally.
func (s *Sim) delivered(p xtables.Packet) bool {
	_, rule := s.objects[Key{Kind: kindRule, Family: familyOf(p)}]
	_, route := s.objects[Key{Kind: kindRoute, Family: familyOf(p), Dst: dstAddr(p.Dst.Addr())}]
	return s.local(p.Dst.Addr()) || rule && route && p.Mark&s.marks.service != 0
}

// local reports whether an address is the host's.
func (s *Sim) local(a netip.Addr) bool {
	_, owned := s.objects[Key{Kind: kindAddress, Family: model.FamilyOf(a), Dst: dstAddr(a)}]
	return owned || a.IsLoopback() || slices.Contains(s.host.IPs, a)
}

func (s *Sim) forward(p xtables.Packet, server virtualserver.ID) oracle.Outcome {
	out := oracle.Outcome{Fate: oracle.Forward}
	sum := 0.0
	for _, w := range s.weights[server] {
		sum += w
	}
	for _, to := range s.servers[server] {
		last := p
		last.Dst = to
		if !s.sent(last) {
			continue
		}
		// Packets to the host itself never reach postrouting or, if they come from
		// the host too, have its address already.
		leaves := !slices.Contains(s.host.IPs, to.Addr())
		snat := s.rules.Run(xtables.NAT, natLast.name(), last)[0].Masqueraded()
		out.Endpoints = append(out.Endpoints, oracle.Target{Addr: to, SNAT: leaves && snat, Share: s.weights[server][to] / max(sum, 1)})
	}
	slices.SortFunc(out.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
	return out
}

// sent reports whether a packet to an endpoint passes the rules for packets of the host,
// which IPVS sends those through that it forwards to elsewhere (ip_vs_nat_send_or_cont,
// Linux net/netfilter/ipvs/ip_vs_xmit.c).
func (s *Sim) sent(p xtables.Packet) bool {
	if s.local(p.Dst.Addr()) {
		return true
	}
	return s.hook(&p, mangleOut, mangleOut) != xtables.Drop && unserved(s.hook(&p, filterOut, filterOut)).Fate == oracle.Pass
}

// set looks up a packet in a set. Fields are "dst" and "src", one for each part of
// the set's type.
func (s *Sim) set(name, fields string, p *xtables.Packet) (xtables.SetMark, bool) {
	id, family := setNamed(name)
	k := Key{Kind: kindEntry, Family: family, Set: id}
	switch id.kind() {
	case ipset.BitmapPort:
		k.Dst = dstPort(p.Dst.Port())
	case ipset.HashIP:
		k.Dst = dstAddr(p.Dst.Addr())
		if fields == "src" {
			k.Dst = dstAddr(p.Src)
		}
	case ipset.HashNet:
		return xtables.SetMark{}, s.within(k, p.Dst.Addr())
	case ipset.HashIPPortNet:
		k.Proto, k.Dst = p.Proto, p.Dst
		return xtables.SetMark{}, s.within(k, p.Src)
	default:
		k.Proto, k.Dst = p.Proto, p.Dst
		if id.kind() == ipset.HashIPPortIP {
			k.Peer = peerClient(p.Src)
		}
	}
	v, ok := s.objects[k]
	if !ok {
		return xtables.SetMark{}, false
	}
	m, _ := s.marks.entry(k, v)
	return xtables.SetMark{Value: m.Value, Mask: m.Mask}, true
}

func (s *Sim) within(set Key, a netip.Addr) bool {
	return slices.ContainsFunc(s.ranges[set.Set], func(r Key) bool {
		return r.Family == set.Family && r.Dst == set.Dst && r.Proto == set.Proto &&
			r.Peer.network().Contains(a)
	})
}

func (c *Compiler) Evaluate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return NewSim(c.options, objects, host).Decide
}

func (*Compiler) Text(k Key, v Value) string {
	switch k.Kind {
	case KindChain, kindJump:
		return strings.TrimSpace(v.Rules.String())
	case kindServer:
		text := "scheduler " + v.Scheduler
		if v.Timeout > 0 {
			text += fmt.Sprintf(", persistent %d s", v.Timeout)
		}
		return text
	case kindEntry:
		if v.Mark != (Mark{}) {
			return "mark " + v.Mark.String()
		}
	}
	return ""
}

// Opaque reports whether a chain has unparsed rules, which match nothing in Evaluate.
func (*Compiler) Opaque(_ Key, v Value) bool {
	for r := range v.Rules.All() {
		if r.Unparsed != "" {
			return true
		}
	}
	return false
}
