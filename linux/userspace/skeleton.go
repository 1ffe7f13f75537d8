package userspace

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// The chains. Those of entries are named as they always were, with the two for
// pods, the guard and the closed ports beside them.
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

// Ports of the shelter that no relay has: on the first nobody listens, on the
// second a socket that takes nothing and answers nothing.
const (
	refusingPort = 1
	silentPort   = 2
)

// ends are the chains in which connections end, and where.
var ends = map[string]uint16{chainRefuse: refusingPort, chainDrop: silentPort}

// entryChains hold entries, and fixedChains rules that depend on the host alone.
var (
	entryChains = []string{
		chainGuard, chainPod, chainContainer, chainHost, chainClosed, chainNodePod, chainNodeContainer, chainNodeHost,
	}
	fixedChains = []string{chainRefuse, chainDrop, chainLast, chainIn, chainOut}
)

// jumps are the ways from the system's chains into ours.
var jumps = map[string]string{"PREROUTING": chainIn, "OUTPUT": chainOut}

// ourChains are all that are not the system's.
func ourChains() []string { return slices.Concat(entryChains, fixedChains) }

func isEntryChain(name string) bool { return slices.Contains(entryChains, name) }

// watched reports whether rules of a chain may concern us.
func watched(name string) bool {
	return isEntryChain(name) || slices.Contains(fixedChains, name) || jumps[name] != ""
}

// last marks the ways that come behind the rules of all others (Key.Rest).
const last = "last"

// jumpRule is the rule of a KindJump.
func jumpRule(k Key) Rule {
	if k.Rest == last {
		return Rule{Comment: "no Kubernetes Service", Jump: chainLast}
	}
	return Rule{Comment: "Kubernetes Services, by relays of tandem", Jump: jumps[k.Chain]}
}

// fixed returns the rules of a fixed chain.
func (c *Compiler) fixed(f model.Family, chain string, host *model.Host) []Rule {
	switch chain {
	case chainRefuse, chainDrop:
		return toAll(f, ends[chain])
	case chainLast:
		return unallocated(f, host)
	case chainIn:
		shut := Rule{Dst: single(Shelter(f)), Comment: "relays are reached through Services only", Jump: chainRefuse}
		in := way{pods: arriving(f, host.Pods), pod: chainPod, other: chainContainer, nodePod: chainNodePod, nodeOther: chainNodeContainer}
		return append([]Rule{shut}, in.rules(f, host)...)
	case chainOut:
		out := way{pods: sent(f, host.Pods), pod: chainPod, other: chainHost, nodePod: chainNodePod, nodeOther: chainNodeHost}
		return append([]Rule{passing(c.mark)}, out.rules(f, host)...)
	}
	return nil
}

// passing lets what relays send go where it would without our rules. An endpoint
// that is a Service's address would come back to a relay, and so for ever.
func passing(mark uint32) Rule {
	return Rule{Mark: mark, Comment: "relays, to endpoints", Jump: returns}
}

// toAll sends connections of all protocols to a port of the shelter.
func toAll(f model.Family, port uint16) (rules []Rule) {
	for _, p := range [...]model.Proto{model.TCP, model.UDP, model.SCTP} {
		rules = append(rules, Rule{Proto: p, To: netip.AddrPortFrom(Shelter(f), port)})
	}
	return rules
}

// way is one of the two entrances: how it tells pods, and the chains that it
// goes through.
type way struct {
	pods               []Rule // matches only
	pod, other         string
	nodePod, nodeOther string
}

func (w way) rules(f model.Family, host *model.Host) []Rule {
	rules := []Rule{{Jump: chainGuard}}
	for _, r := range w.pods {
		r.Jump, r.Comment = w.pod, "pods of this node"
		rules = append(rules, r)
	}
	rules = append(rules, Rule{Jump: w.other}, Rule{Jump: chainClosed})
	if !host.NodePorts.Loopback {
		rules = append(rules, Rule{Dst: loopback(f), Jump: returns})
	}
	for _, p := range ofFamily(host.NodePorts.Prefixes, f) {
		for _, r := range w.pods {
			r.Dst, r.Local, r.Jump = p, true, w.nodePod
			rules = append(rules, r)
		}
		rules = append(rules, Rule{Dst: p, Local: true, Jump: w.nodeOther})
	}
	return rules
}

// unallocated returns the rules that drop what is for a cluster IP that there is
// not, and for no address of this host. An address that no Service of ours has may
// be another proxy's (label service-proxy-name), whose rules come before these.
func unallocated(f model.Family, host *model.Host) (rules []Rule) {
	for _, p := range ofFamily(host.ServiceCIDRs, f) {
		rules = append(rules, Rule{Dst: p, Local: true, Jump: returns}, Rule{Dst: p, Comment: "for cluster IPs, and none of them", Jump: chainDrop})
	}
	return rules
}

// arriving returns the matches that tell pods' packets among those that arrive,
// and sent among those of the host itself, which come by no interface.
func arriving(f model.Family, pods model.PodMatch) []Rule {
	switch {
	case pods.Interface != "":
		return []Rule{{In: pods.Interface}}
	case pods.Prefix != "":
		return []Rule{{In: pods.Prefix + "+"}}
	}
	return sent(f, pods)
}

func sent(f model.Family, pods model.PodMatch) (rules []Rule) {
	for _, p := range ofFamily(pods.CIDRs, f) {
		rules = append(rules, Rule{Src: p})
	}
	return rules
}

// ofFamily returns the prefixes of a family, none inside another. What matches
// everything is the zero value.
func ofFamily(ps []netip.Prefix, f model.Family) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range ps {
		if model.FamilyOf(p.Addr()) == f {
			all = append(all, p)
		}
	}
	all = model.Canonical(all)
	for i, p := range all {
		if p.Bits() == 0 {
			all[i] = netip.Prefix{}
		}
	}
	return all
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func loopback(f model.Family) netip.Prefix {
	if f == model.IPv4 {
		return netip.MustParsePrefix("127.0.0.0/8")
	}
	return netip.MustParsePrefix("::1/128")
}
