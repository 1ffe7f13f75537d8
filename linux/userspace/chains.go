// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// The chains. Those of kube-proxy's userspace mode have its names; new are those for
// pods, source ranges and other ports of cluster IPs.
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
	chainReject        = "KUBE-PORTALS-REFUSE"
	chainDrop          = "KUBE-PORTALS-DROP"
)

// ends are the chains that reject or drop, and the ports that they use for it.
var ends = map[string]uint16{chainReject: rejectPort, chainDrop: dropPort}

// entryChains hold entries; the rules of fixedChains depend only on the host.
var (
	entryChains = []string{
		chainGuard, chainPod, chainContainer, chainHost, chainClosed, chainNodePod, chainNodeContainer, chainNodeHost,
	}
	fixedChains = []string{chainReject, chainDrop, chainLast, chainIn, chainOut}
)

// jumps are the built-in chains and our chains that they jump to.
var jumps = map[string]string{xtables.PreRouting: chainIn, xtables.Output: chainOut}

// ownedChains are all chains but the built-in ones.
func ownedChains() []string { return slices.Concat(entryChains, fixedChains) }

func isEntryChain(name string) bool { return slices.Contains(entryChains, name) }

func isFixedChain(name string) bool { return slices.Contains(fixedChains, name) }

// fixed returns the rules of a fixed chain.
func fixed(f model.Family, chain string, host *model.Host, mark uint32) []xtables.Rule {
	switch chain {
	case chainReject, chainDrop:
		return dnatAll(f, ends[chain])
	case chainLast:
		return unallocated(f, host, mark)
	case chainIn:
		shut := xtables.Rule{Dst: xtables.Address(relayAddr(f)), Comment: "relays are reached through Services only", Target: xtables.Jump{Chain: chainReject}}
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

// skipRelayTraffic exempts packets from relays from our rules. If an endpoint is a
// Service's address, its connections would return to a relay, in an endless loop.
func skipRelayTraffic(mark uint32) xtables.Rule {
	marked := xtables.HasMark{Value: mark, Mask: mark}
	return xtables.Rule{Comment: "relays, to endpoints", Matches: []xtables.Match{marked}, Target: xtables.Return}
}

// dnatAll redirects connections of all protocols to a port of the relay address.
func dnatAll(f model.Family, port uint16) (rules []xtables.Rule) {
	for _, p := range [...]model.Proto{model.TCP, model.UDP, model.SCTP} {
		rules = append(rules, xtables.Rule{Proto: p, Target: xtables.DNAT{To: relayAddrPort(f, port)}})
	}
	return rules
}

// hookChain describes one of the two chains at hooks: how it detects pods, and the
// chains that it jumps to.
type hookChain struct {
	pods               []xtables.Rule // matches only
	pod, other         string
	nodePod, nodeOther string
}

func (w hookChain) rules(f model.Family, host *model.Host) []xtables.Rule {
	rules := []xtables.Rule{xtables.JumpTo(chainGuard)}
	for _, r := range w.pods {
		r.Target, r.Comment = xtables.Jump{Chain: w.pod}, "pods of this node"
		rules = append(rules, r)
	}
	rules = append(rules, xtables.JumpTo(w.other), xtables.JumpTo(chainClosed))
	if a := f.Loopback(); host.NodePorts.Contains(a) {
		rules = append(rules, w.nodePorts(netip.PrefixFrom(a, a.BitLen()))...)
	}
	rules = append(rules, xtables.Rule{Dst: xtables.Within(f.Loopbacks()), Target: xtables.Return})
	for _, p := range f.Prefixes(host.NodePorts.Prefixes) {
		rules = append(rules, w.nodePorts(p)...)
	}
	return rules
}

// nodePorts returns the jumps to the chains of node ports for local addresses of a prefix.
func (w hookChain) nodePorts(p netip.Prefix) (rules []xtables.Rule) {
	to, here := xtables.Within(p), xtables.DstLocal{}
	for _, r := range w.pods {
		r.Dst, r.Target = to, xtables.Jump{Chain: w.nodePod}
		rules = append(rules, r.With(here))
	}
	return append(rules, xtables.Rule{Dst: to, Matches: []xtables.Match{here}, Target: xtables.Jump{Chain: w.nodeOther}})
}

// sayUnallocated is the comment of the rules that drop them.
const sayUnallocated = "for cluster IPs, and none of them"

// unallocated returns the rules that drop packets to unallocated cluster IPs, except
// to addresses of this host, and those of relays: where endpoints have addresses in such a
// range they are reached, as in the kernel modes. An address may belong to a Service of another proxy
// (label service-proxy-name), whose rules come before these.
func unallocated(f model.Family, host *model.Host, mark uint32) (rules []xtables.Rule) {
	here := []xtables.Match{xtables.DstLocal{}}
	for i, p := range f.Prefixes(host.ServiceCIDRs) {
		if i == 0 {
			rules = append(rules, skipRelayTraffic(mark))
		}
		to := xtables.Within(p)
		rules = append(rules, xtables.Rule{Dst: to, Matches: here, Target: xtables.Return},
			xtables.Rule{Dst: to, Comment: sayUnallocated, Target: xtables.Jump{Chain: chainDrop}})
	}
	return rules
}

// jumpRule is the rule of a kindJump.
func jumpRule(k Key) xtables.Rule {
	if k.Late {
		return xtables.Rule{Comment: "no Kubernetes Service", Target: xtables.Jump{Chain: chainLast}}
	}
	return xtables.Rule{Comment: "Kubernetes Services, by relays of tandem", Target: xtables.Jump{Chain: jumps[k.Chain]}}
}
