// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// The chains. Those of entries are named as they always were, with the two for
// pods, the source ranges and the other ports of cluster IPs beside them.
const (
	chainIn            = "KUBE-PORTALS-IN"
	chainOut           = "KUBE-PORTALS-OUT"
	chainLast          = "KUBE-PORTALS-UNALLOCATED"
	chainGuard         = "KUBE-PORTALS-GUARD"
	chainPod           = "KUBE-PORTALS-POD"
	chainContainer     = "KUBE-PORTALS-CONTAINER"
	chainHost          = "KUBE-PORTALS-HOST"
	chainClosed        = "KUBE-PORTALS-CLOSED"
	chainNodePod       = "KUBE-NODEPORT-POD"
	chainNodeContainer = "KUBE-NODEPORT-CONTAINER"
	chainNodeHost      = "KUBE-NODEPORT-HOST"
	chainRefuse        = "KUBE-PORTALS-REFUSE"
	chainDrop          = "KUBE-PORTALS-DROP"
)

// Ports of the relay address that no relay has: on the first nothing listens, on the
// second sockets that drop every packet.
const (
	rejectPort = 1
	dropPort   = 2
)

// RelayAddr returns the address on lo that relays listen on. It is local to the
// host: link-local in IPv4, of a unique local prefix in IPv6.
func RelayAddr(f model.Family) netip.Addr {
	if f == model.IPv4 {
		return netip.AddrFrom4([4]byte{169, 254, 84, 1})
	}
	return netip.MustParseAddr("fd74:616e:6465:6d::1")
}

func relayAddrPort(f model.Family, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(RelayAddr(f), port)
}

// ends are the chains in which connections end, and where.
var ends = map[string]uint16{chainRefuse: rejectPort, chainDrop: dropPort}

// entryChains hold entries, and fixedChains rules that depend on the host alone.
var (
	entryChains = []string{
		chainGuard, chainPod, chainContainer, chainHost, chainClosed, chainNodePod, chainNodeContainer, chainNodeHost,
	}
	fixedChains = []string{chainRefuse, chainDrop, chainLast, chainIn, chainOut}
)

// jumps are the ways from the system's chains into ours.
var jumps = map[string]string{xtables.PreRouting: chainIn, xtables.Output: chainOut}

// ourChains are all that are not the system's.
func ourChains() []string { return slices.Concat(entryChains, fixedChains) }

func isEntryChain(name string) bool { return slices.Contains(entryChains, name) }

func isFixedChain(name string) bool { return slices.Contains(fixedChains, name) }

// fixed returns the rules of a fixed chain.
func fixed(f model.Family, chain string, host *model.Host, mark uint32) []xtables.Rule {
	switch chain {
	case chainRefuse, chainDrop:
		return dnatAll(f, ends[chain])
	case chainLast:
		return unallocated(f, host)
	case chainIn:
		shut := xtables.Rule{Dst: xtables.Address(RelayAddr(f)), Comment: "relays are reached through Services only", Target: xtables.Jump{Chain: chainRefuse}}
		pods, _ := xtables.FromPods(f, host.Pods)
		in := hookChain{pods: pods, pod: chainPod, other: chainContainer, nodePod: chainNodePod, nodeOther: chainNodeContainer}
		return append([]xtables.Rule{shut}, in.rules(f, host)...)
	case chainOut:
		_, pods := xtables.FromPods(f, host.Pods)
		out := hookChain{pods: pods, pod: chainPod, other: chainHost, nodePod: chainNodePod, nodeOther: chainNodeHost}
		return append([]xtables.Rule{skipRelayTraffic(mark)}, out.rules(f, host)...)
	}
	return nil
}

// skipRelayTraffic lets what relays send go where it would without our rules. An endpoint
// that is a Service's address would come back to a relay, and so for ever.
func skipRelayTraffic(mark uint32) xtables.Rule {
	marked := xtables.HasMark{Value: mark, Mask: mark}
	return xtables.Rule{Comment: "relays, to endpoints", Matches: []xtables.Match{marked}, Target: xtables.Return}
}

// dnatAll sends connections of all protocols to a port of the relay address.
func dnatAll(f model.Family, port uint16) (rules []xtables.Rule) {
	for _, p := range [...]model.Proto{model.TCP, model.UDP, model.SCTP} {
		rules = append(rules, xtables.Rule{Proto: p, Target: xtables.DNAT{To: relayAddrPort(f, port)}})
	}
	return rules
}

// hookChain is one of the two entrances: how it tells pods, and the chains that it
// goes through.
type hookChain struct {
	pods               []xtables.Rule // matches only
	pod, other         string
	nodePod, nodeOther string
}

func (w hookChain) rules(f model.Family, host *model.Host) []xtables.Rule {
	here := []xtables.Match{xtables.DstLocal{}}
	rules := []xtables.Rule{xtables.JumpTo(chainGuard)}
	for _, r := range w.pods {
		r.Target, r.Comment = xtables.Jump{Chain: w.pod}, "pods of this node"
		rules = append(rules, r)
	}
	rules = append(rules, xtables.JumpTo(w.other), xtables.JumpTo(chainClosed))
	if !host.NodePorts.Loopback {
		rules = append(rules, xtables.Rule{Dst: xtables.Within(xtables.Loopback(f)), Target: xtables.Return})
	}
	for _, p := range f.Prefixes(host.NodePorts.Prefixes) {
		for _, r := range w.pods {
			r.Dst, r.Target = xtables.Within(p), xtables.Jump{Chain: w.nodePod}
			rules = append(rules, r.With(xtables.DstLocal{}))
		}
		rules = append(rules, xtables.Rule{Dst: xtables.Within(p), Matches: here, Target: xtables.Jump{Chain: w.nodeOther}})
	}
	return rules
}

// unallocated returns the rules that drop what is for a cluster IP that there is
// not, and for no address of this host. An address that no Service of ours has may
// be another proxy's (label service-proxy-name), whose rules come before these.
func unallocated(f model.Family, host *model.Host) (rules []xtables.Rule) {
	here := []xtables.Match{xtables.DstLocal{}}
	for _, p := range f.Prefixes(host.ServiceCIDRs) {
		to := xtables.Within(p)
		rules = append(rules, xtables.Rule{Dst: to, Matches: here, Target: xtables.Return},
			xtables.Rule{Dst: to, Comment: "for cluster IPs, and none of them", Target: xtables.Jump{Chain: chainDrop}})
	}
	return rules
}
