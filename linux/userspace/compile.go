// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Compiler turns ports into relays and the rules that lead to them
// (dataplane.Compiler).
type Compiler struct {
	dataplane.SimpleCompiler[Key, Value]
	mark     uint32
	families []model.Family
}

var _ dataplane.Compiler[Key, Value] = (*Compiler)(nil)

// NewCompiler returns a compiler for some families; none means both. Packets from
// relays carry the fwmark bit mark.
func NewCompiler(mark uint32, families ...model.Family) *Compiler {
	return &Compiler{mark: mark, families: model.FamiliesOr(families)}
}

// ServiceCIDRs returns none for a chain read from nftables, of which only a digest is known.
func (c *Compiler) ServiceCIDRs(k Key, v Value) (all []netip.Prefix) {
	if k.Kind != KindChain || k.Chain != chainLast {
		return nil
	}
	for r := range v.Rules.All() {
		if r.Comment == sayUnallocated {
			all = append(all, r.Dst.Prefix)
		}
	}
	return all
}

// markOf is the fwmark bit of packets from relays: the masquerade bit, since these
// packets have this host's address already.
func markOf(c *config.Config) uint32 { return 1 << c.MasqueradeBit }

func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	for _, f := range c.families {
		emit(Key{Kind: kindAddress, Family: f}, Value{})
		emit(Key{Kind: kindDropPort, Family: f}, Value{})
		emit(Key{Kind: KindTable, Family: f}, Value{})
		ranges := len(f.Prefixes(host.ServiceCIDRs)) > 0
		for _, name := range ownedChains() {
			if name != chainLast || ranges {
				chainWith(Key{Kind: KindChain, Family: f, Chain: name}, fixed(f, name, host, c.mark), emit)
			}
		}
		for chain := range jumps {
			jump(Key{Kind: kindJump, Family: f, Chain: chain}, emit)
			if ranges {
				jump(Key{Kind: kindJump, Family: f, Chain: chain, Late: true}, emit)
			}
		}
	}
}

func jump(k Key, emit func(Key, Value)) { chainWith(k, []xtables.Rule{jumpRule(k)}, emit) }

func chainWith(k Key, rules []xtables.Rule, emit func(Key, Value)) {
	emit(k, Value{Rules: xtables.List(rules...), Digest: digest(k, rules)})
}

// The gaps of this mode.
const (
	noSCTP   = "SCTP is not served: relays carry TCP and UDP only"
	noSource = "endpoints see an address of this node, not the client's"
)

func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(Key, Value)) []model.Gap {
	if !slices.Contains(c.families, port.ID.Family) {
		return []model.Gap{model.MissingFamily(port.ID.Family, "iptables or nftables")}
	}
	rejectOtherPorts(port, emit)
	if port.ID.Proto == model.SCTP {
		return []model.Gap{{Missing: true, Detail: noSCTP}}
	}
	relays := [2]RelayID{model.Cluster: relayOf(port.ID, model.Cluster)}
	for _, by := range model.TrafficPolicies() {
		if pool := port.PoolOf(by); pool != nil {
			relays[by] = relayOf(port.ID, by)
			emit(Key{Kind: kindRelay, Family: port.ID.Family, Relay: relays[by]}, Value{Policy: policy(port, pool)})
		}
	}
	for i := range port.Frontends {
		p := portals{port: port, relays: relays, frontend: &port.Frontends[i], emit: emit}
		p.all(host.Pods.Known(port.ID.Family))
	}
	var gaps []model.Gap
	if why := relay.Unscheduled(port.Scheduler); why != "" {
		gaps = append(gaps, model.Gap{Detail: why})
	}
	if hidesSource(host, port) {
		gaps = append(gaps, model.Gap{Detail: noSource, Source: true})
	}
	return gaps
}

// hidesSource reports whether an endpoint should see its clients' addresses, which
// relays cannot keep. Endpoints on this host's addresses always should: in the kernel modes
// their packets skip POSTROUTING.
func hidesSource(host *model.Host, port *model.Port) bool {
	own := func(e model.Endpoint) bool { return slices.Contains(host.IPs, e.Addr.Addr()) }
	for i := range port.Frontends {
		for _, a := range port.Frontends[i].On {
			if a.Verdict == model.Balance && (!a.SNAT || slices.ContainsFunc(a.Pool.Endpoints, own)) {
				return true
			}
		}
	}
	return false
}

// rejectOtherPorts emits the entries that reject other ports of cluster IPs, for all
// protocols.
func rejectOtherPorts(port *model.Port, emit func(Key, Value)) {
	for i := range port.Frontends {
		if f := &port.Frontends[i]; f.Kind == model.KindClusterIP {
			at := netip.AddrPortFrom(f.At.Addr(), 0)
			emit(Key{Kind: kindEntry, Family: port.ID.Family, Chain: chainClosed, At: at}, Value{To: Target{Do: Reject}})
		}
	}
}

func policy(port *model.Port, pool *model.Pool) *relay.Policy {
	p := relay.Same(relay.Balance(pool, port.Scheduler))
	p.Port, p.SessionAffinity, p.Draining = port.ID, port.SessionAffinity, port.Draining
	return &p
}

// portals emits the entries of one frontend.
type portals struct {
	port     *model.Port
	relays   [2]RelayID // by policy; the first also names entries for no relay
	frontend *model.Frontend
	emit     func(Key, Value)
}

func (p portals) all(podsKnown bool) {
	pod, host, outside := p.target(model.FromPod), p.target(model.FromHost), p.target(model.FromOutside)
	chains := [model.Origins]string{chainPod, chainHost, chainContainer}
	if p.frontend.Kind == model.KindNodePort {
		chains = [model.Origins]string{chainNodePod, chainNodeHost, chainNodeContainer}
	}
	p.entry(chains[model.FromOutside], p.frontend.At, netip.Prefix{}, outside)
	p.entry(chains[model.FromHost], p.frontend.At, netip.Prefix{}, host)
	if podsKnown && (pod != outside || pod != host) {
		p.entry(chains[model.FromPod], p.frontend.At, netip.Prefix{}, pod)
	}
	if p.frontend.Restricted {
		for _, from := range p.frontend.Allow {
			p.entry(chainGuard, p.frontend.At, from, p.own(Accept))
		}
		p.entry(chainGuard, p.frontend.At, netip.Prefix{}, p.own(Drop))
	}
}

func (p portals) entry(chain string, at netip.AddrPort, from netip.Prefix, to Target) {
	p.emit(Key{Kind: kindEntry, Family: p.port.ID.Family, Chain: chain, Proto: p.port.ID.Proto, At: at, From: from}, Value{To: to})
}

func (p portals) own(do Do) Target { return Target{Do: do, Relay: p.relays[model.Cluster]} }

func (p portals) target(from model.Origin) Target {
	switch a := p.frontend.On[from]; a.Verdict {
	case model.Balance:
		return Target{Do: toRelay, Relay: p.relays[a.Policy]}
	case model.Reject:
		return p.own(Reject)
	}
	return p.own(Drop)
}

// Rank: entries for allowed source ranges come before relays, then the entries that drop all
// other clients: a restricted frontend is never open to all. Of the other entries those for
// this node's pods come first: without one a pod matches the entry for all other clients, which
// may lead to other endpoints.
func (c *Compiler) Rank(k Key) int {
	rank := 4 * int(k.Kind)
	switch {
	case k.Kind != kindEntry:
		return rank
	case k.Chain == chainGuard && k.From.IsValid():
		return 4*int(kindRelay) - 2
	case k.Chain == chainGuard:
		return 4*int(kindRelay) - 1
	case k.Chain == chainPod || k.Chain == chainNodePod:
		return rank
	}
	return rank + 1
}

// Admits returns, for an allowed source range, the entry that drops the other clients of its
// frontend, and the range.
func (c *Compiler) Admits(k Key) (guard Key, clients netip.Prefix) {
	if k.Kind != kindEntry || k.Chain != chainGuard || !k.From.IsValid() {
		return guard, clients
	}
	clients = k.From
	k.From = netip.Prefix{}
	return k, clients
}

func (c *Compiler) Equal(a, b Value) bool { return a.equal(b) }
