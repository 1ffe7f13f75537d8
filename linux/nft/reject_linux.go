// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// To see which packets the kernel rejects, a temporary table in each family traces first packets to some
// frontends, at a limited rate for each tenant:
//
//	table ip tandem-monitor-PORT-RANDOM {
//	  map frontends { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.11 . tcp . 5432 : goto of-0 } }
//	  map nodeports { type inet_proto . inet_service : verdict }
//	  chain prerouting { type filter hook prerouting priority -190; ct state new goto choose }
//	  chain output { type filter hook output priority -190; ct state new goto choose }
//	  chain choose { ip daddr . meta l4proto . th dport vmap @frontends; fib daddr type local meta l4proto . th dport vmap @nodeports }
//	  chain of-0 { limit rate 10/second burst 10 packets meta nftrace set 1 }
//	}
//
// If IPVS or iptables-legacy decide, too, the table also reports packets that leave or are delivered: all others were
// rejected.
//
//	chain delivered { type filter hook input priority 1000; }
//	chain sent { type filter hook postrouting priority -1000; }
//
// Rules of iptables-legacy would log traced packets to the kernel's log. So the trace is off while a packet traverses them:
// the set begun remembers its connection, and the end of its way turns the trace on again.
//
//	set begun { type integer; size 8192; flags dynamic,timeout }
//	chain delivered, sent { ct state new ct id @begun meta nftrace set 1; ct id @begun meta nftrace set 0 }
//	chain of-0 { limit rate 10/second burst 10 packets update @begun { ct id timeout 5s } meta nftrace set 1; ct id @begun meta nftrace set 0 }
//
// The table exists while connections are monitored. The rules of the modes are not touched.
const (
	chooseChain    = "choose"
	deliveredChain = "delivered"
	sentChain      = "sent"
	rejectPriority = -190 // after conntrack, -200, and before all NAT
	farPriority    = 1000 // after, or negative before, all other chains of a hook
	begunSize      = 8192 // connections, more than begin in begunFor
	begunFor       = 5 * time.Second

	// TracedEach is the number of packets per second traced for each tenant (namespace). Tenants beyond MostTenants share
	// the rate of the last one.
	TracedEach  = 10
	MostTenants = 32

	// MostTraced bounds the frontends that are traced.
	MostTraced = 10_000
)

// some matches at most Rate packets per second.
type some struct{ Rate uint64 }

func (s some) text(model.Family) string {
	return fmt.Sprintf("limit rate %d/second burst %d packets", s.Rate, s.Rate)
}

func (s some) encode(e *encoder) {
	e.expr("limit", func() {
		e.Uint64(limitRate, s.Rate)
		e.Uint64(limitUnit, 1)
		e.Uint32(limitBurst, uint32(s.Rate))
		e.Uint32(limitType, limitPackets)
	})
}

func (s some) eval(_ *Sim, p *step) []step { return p.match(true) }

// report turns the trace of a packet on or, with Not, off, from this rule on.
type report struct{ Not bool }

func (s report) value() byte {
	if s.Not {
		return 0
	}
	return 1
}

func (s report) text(model.Family) string { return fmt.Sprintf("meta nftrace set %d", s.value()) }

func (s report) encode(e *encoder) {
	e.immediate(reg0, []byte{s.value()})
	e.setMeta(metaNFTrace)
}

func (s report) eval(_ *Sim, p *step) []step { return p.match(true) }

// Reporting states which parts of the data plane report the packets that they reject.
type Reporting uint8

const (
	AllReport  Reporting = iota // only rules of nf_tables decide, and are reported
	RulesDo                     // IPVS decides, too, without a report
	NoneReport                  // rules of iptables-legacy decide, without a report
)

// Rejected is a packet that was rejected or dropped.
type Rejected struct {
	Proto   model.Proto
	Src     netip.AddrPort
	Dst     netip.AddrPort
	Iface   uint32 // index of the interface that it came in by; 0 for packets of this host
	Verdict string // reject or drop; empty if unknown
	Rule    string // that rejected it; empty if unknown

	look   int    // number of the Look in which its trace began
	number uint64 // in the order of beginnings
}

// Rejections traces rejected packets, in the network namespace of the thread that opens it. It is used by one goroutine at a time.
type Rejections struct {
	driver               *Driver
	events, asks         *netlink.Socket
	table                *Table
	frontends, nodePorts *Set
	ends                 bool // ends of packets' ways are reported
	begun                *Set // nil if rules are traced

	looks   int
	begins  uint64
	have    map[Key]Value
	packets map[uint32]*Rejected // in flight, by the kernel's trace id
	rejects map[ruleKey]bool     // rules that reject, not drop
}

type ruleKey struct {
	family       byte
	table, chain string
	handle       uint64
}

// The bounds of Rejections' maps; a full one is cleared.
const (
	mostPackets = 4096
	mostRules   = 1024
)

// OpenRejections creates the tables. Nothing is traced before Trace.
func OpenRejections(by Reporting) (r *Rejections, err error) {
	r = &Rejections{
		ends:      by != AllReport,
		frontends: &Set{Name: "frontends", Key: []Field{Daddr, L4Proto, Dport}, Data: DataVerdict},
		nodePorts: &Set{Name: "nodeports", Key: []Field{L4Proto, Dport}, Data: DataVerdict},
		packets:   map[uint32]*Rejected{}, rejects: map[ruleKey]bool{},
	}
	sets := []*Set{r.frontends, r.nodePorts}
	if by == NoneReport {
		r.begun = &Set{Name: "begun", Key: []Field{Number}, Loads: []Field{CtID}, Size: begunSize, Unread: true}
		sets = append(sets, r.begun)
	}
	r.table = NewTable("", Owner, Owner+" (monitor)", sets...)
	if r.driver, err = Open(r.table); err != nil {
		return nil, Advise(err)
	}
	for _, s := range []**netlink.Socket{&r.events, &r.asks} {
		if *s, err = openSocket(); err != nil {
			return nil, errors.Join(Advise(err), r.Close())
		}
	}
	if r.table.Name, err = temporaryName(monitorTable, r.asks); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := r.events.Join(netlink.GroupNFTrace); err != nil {
		return nil, errors.Join(fmt.Errorf("nftables traces: %w", err), r.Close())
	}
	err = withOwner(func(flags uint32) error {
		r.table.flags = flags
		return r.commit(context.Background(), r.objects(nil))
	})
	if err != nil {
		return nil, errors.Join(Advise(err), r.Close())
	}
	return r, nil
}

// Close deletes the tables and closes the sockets.
func (r *Rejections) Close() error {
	var errs []error
	if len(r.have) > 0 {
		errs = append(errs, r.commit(context.Background(), nil))
	}
	for _, s := range []*netlink.Socket{r.events, r.asks} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(append(errs, r.driver.Close())...)
}

// Trace sets the frontends whose packets are traced; those beyond MostTraced are left out.
func (r *Rejections) Trace(ctx context.Context, all []monitor.Frontend) error {
	return r.commit(ctx, r.objects(all[:min(len(all), MostTraced)]))
}

// objects returns the objects of the tables for some frontends.
func (r *Rejections) objects(all []monitor.Frontend) map[Key]Value {
	want := map[Key]Value{}
	put := func(k Key, v Value) { want[k] = v }
	for _, f := range model.Families() {
		put(r.table.Object(f))
		put(SetObject(f, r.frontends))
		put(SetObject(f, r.nodePorts))
		tenant, end := []Rule{NewRule(some{TracedEach}, report{})}, []Rule(nil)
		if r.begun != nil {
			put(SetObject(f, r.begun))
			quiet := NewRule(Lookup{Set: r.begun}, report{Not: true})
			tenant = []Rule{NewRule(some{TracedEach}, Update{r.begun, begunFor}, report{}), quiet}
			end = []Rule{NewRule(CtState{CtNew}, Lookup{Set: r.begun}, report{}), quiet}
		}
		if r.ends {
			put(r.table.ChainObject(f, deliveredChain, Hook{Type: "filter", Point: LocalIn, Priority: farPriority, Policy: PolicyAccept}, end))
			put(r.table.ChainObject(f, sentChain, Hook{Type: "filter", Point: PostRouting, Priority: -farPriority, Policy: PolicyAccept}, end))
		}
		for i := range MostTenants {
			put(r.table.ChainObject(f, tenantChain(i), Hook{}, tenant))
		}
		put(r.table.ChainObject(f, chooseChain, Hook{}, []Rule{NewRule(Vmap{r.frontends}), NewRule(FibLocal{}, Vmap{r.nodePorts})}))
		for name, at := range map[string]Point{"prerouting": PreRouting, "output": LocalOut} {
			put(r.table.ChainObject(f, name, Hook{Type: "filter", Point: at, Priority: rejectPriority, Policy: PolicyAccept}, []Rule{NewRule(CtState{CtNew}, Goto{chooseChain})}))
		}
	}
	number := map[string]int{}
	for _, t := range all {
		n, known := number[t.Namespace]
		if !known {
			n = min(len(number), MostTenants-1)
			number[t.Namespace] = n
		}
		k := AddrPortKey(r.frontends, t.Proto, t.At)
		if t.At.Addr().IsUnspecified() {
			k = PortKey(r.nodePorts, model.FamilyOf(t.At.Addr()), t.Proto, t.At.Port())
		}
		want[k] = GotoValue(tenantChain(n), "")
	}
	return want
}

func tenantChain(n int) string { return fmt.Sprintf("of-%d", n) }

// commit makes the kernel's objects the wanted ones.
func (r *Rejections) commit(ctx context.Context, want map[Key]Value) error {
	var ops []Op
	for k, v := range r.have {
		if _, stays := want[k]; !stays {
			ops = append(ops, Op{Verb: ledger.Delete, Key: k, Old: v})
		}
	}
	for k, v := range want {
		if old, there := r.have[k]; !there {
			ops = append(ops, Op{Verb: ledger.Create, Key: k, New: v})
		} else if k.Kind == KindElement && old.Body.Goto != v.Body.Goto {
			ops = append(ops, Op{Verb: ledger.Replace, Key: k, Old: old, New: v})
		}
	}
	if len(want) == 0 { // deleting a table deletes its contents
		ops = slices.DeleteFunc(ops, func(o Op) bool { return o.Key.Kind != KindTable })
	}
	slices.SortFunc(ops, func(a, b Op) int {
		return cmp.Or(cmp.Compare(deletesFirst(a), deletesFirst(b)), cmp.Compare(rank(a), rank(b)))
	})
	for _, err := range r.driver.Commit(ctx, ops) {
		if err != nil { // the transaction was not applied
			return err
		}
	}
	r.have = want
	return nil
}

// rank orders objects so that each comes after those that it needs.
func rank(o Op) int {
	switch {
	case o.Key.Kind == KindElement:
		return 5
	case o.Key.Kind != KindChain:
		return int(o.Key.Kind)
	case o.New.Body != nil && o.New.Body.Chain.Hook.Type != "":
		return 4
	case o.Key.Name() == chooseChain:
		return 3
	}
	return 2
}

// Look calls each for the packets that were rejected since the last call. It reads at most that many reports of rules; the others
// wait. Lost means that reports were lost since they did not fit into the socket's queue.
func (r *Rejections) Look(ctx context.Context, most int, each func(Rejected)) (lost bool, err error) {
	var caughtUp bool
	r.looks++
	caughtUp, lost, err = r.events.Reports(most, func(m netlink.Message) {
		if s, ok := traceStep(m); ok {
			r.step(ctx, m, s, each)
		}
	})
	switch {
	case err != nil:
		return lost, fmt.Errorf("nftables traces: %w", err)
	case !r.ends:
	case lost: // maybe reports of ends
		clear(r.packets)
	case caughtUp:
		r.endless(each)
	}
	return lost, nil
}

// endless calls each for the packets whose trace began before this Look and has no end.
func (r *Rejections) endless(each func(Rejected)) {
	var all []*Rejected
	for id, p := range r.packets {
		if p.look < r.looks {
			all = append(all, p)
			delete(r.packets, id)
		}
	}
	slices.SortFunc(all, func(a, b *Rejected) int { return cmp.Compare(a.number, b.number) })
	for _, p := range all {
		each(*p)
	}
}

// step handles a report: the beginning of a packet's trace, a drop, or the end of its way.
func (r *Rejections) step(ctx context.Context, m netlink.Message, s Step, each func(Rejected)) {
	if strings.HasSuffix(s.Table, " "+r.table.Name) {
		if s.Chain == deliveredChain || s.Chain == sentChain {
			delete(r.packets, s.ID)
			return
		}
		if p, ok := tracedPacket(m); ok {
			if len(r.packets) >= mostPackets {
				clear(r.packets)
			}
			r.begins++
			p.look, p.number = r.looks, r.begins
			r.packets[s.ID] = &p
		}
		return
	}
	p := r.packets[s.ID]
	if p == nil || s.Verdict != "drop" {
		return
	}
	delete(r.packets, s.ID)
	p.Verdict = s.Verdict
	if p.Rule = fmt.Sprintf("%s %s: policy drop", s.Table, s.Chain); s.Handle != 0 {
		p.Rule = fmt.Sprintf("%s %s: rule %d", s.Table, s.Chain, s.Handle)
		if r.isReject(ctx, m, s) {
			p.Verdict = "reject"
		}
	}
	each(*p)
}

// isReject reports whether a rule rejects what it drops.
func (r *Rejections) isReject(ctx context.Context, m netlink.Message, s Step) (rejects bool) {
	at := ruleKey{m.Family(), s.Table, s.Chain, s.Handle}
	if rejects, known := r.rejects[at]; known {
		return rejects
	}
	if len(r.rejects) >= mostRules {
		clear(r.rejects)
	}
	_, rejects = ruleOf(ctx, r.asks, m, s)
	r.rejects[at] = rejects
	return rejects
}

// tracedPacket reads the packet's headers in its first trace message.
func tracedPacket(m netlink.Message) (p Rejected, ok bool) {
	var src, dst netip.Addr
	var ports []byte
	for attr, v := range m.Attrs() {
		switch attr {
		case unix.NFTA_TRACE_NETWORK_HEADER:
			src = sender(v)
			if src.Is4() {
				dst, _ = netip.AddrFromSlice(v[16:20])
				p.Proto = model.Proto(v[9])
			} else if src.Is6() {
				dst, _ = netip.AddrFromSlice(v[24:40])
				p.Proto = model.Proto(v[6])
			}
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			ports = v
		case unix.NFTA_TRACE_IIF:
			p.Iface = netlink.Uint32(v)
		}
	}
	if !dst.IsValid() || len(ports) < 4 {
		return p, false
	}
	p.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(ports))
	p.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ports[2:]))
	return p, true
}

// HasChain reports whether a table of one of the families has a chain.
func HasChain(ctx context.Context, table, chain string) bool {
	sock, err := openSocket()
	if err != nil {
		return false
	}
	defer sock.Close()
	return slices.ContainsFunc(model.Families(), func(f model.Family) bool {
		return request(ctx, sock, msgGetChain, 0, netlink.FamilyOf(f), func(w *netlink.Writer) {
			w.Text(attrTable, table)
			w.Text(attrChainName, chain)
		}, func(netlink.Message) error { return nil }) == nil
	})
}
