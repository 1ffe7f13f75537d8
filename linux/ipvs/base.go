package ipvs

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Base emits what is there before any Service (dataplane.Compiler).
func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	emit(Key{Kind: KindLink}, Value{})
	for _, f := range c.options.families() {
		emit(Key{Kind: KindRule, Family: f}, Value{})
		for s := noSet + 1; s < numSets; s++ {
			emit(Key{Kind: KindSet, Family: f, Set: s}, Value{})
		}
		emitRanges(NodePortRanges, f, host.NodePorts.Prefixes, emit)
		emitRanges(ServiceCIDRs, f, host.ServiceCIDRs, emit)
		for id, lines := range c.chains(f, host) {
			if len(lines) == 0 {
				continue
			}
			rules := append([]string{comment(owner)}, lines...)
			emit(Key{Kind: KindChain, Family: f, Chain: ChainID(id)}, Value{Rules: &Rules{rules}})
			if ChainID(id).from() != "" {
				emit(Key{Kind: KindJump, Family: f, Chain: ChainID(id)}, Value{})
			}
		}
	}
}

// emitRanges emits the entries of a set of prefixes.
func emitRanges(set SetID, f model.Family, all []netip.Prefix, emit func(Key, Value)) {
	for _, p := range model.Canonical(slices.Clone(all)) {
		if model.FamilyOf(p.Addr()) == f {
			emitPrefix(Key{Kind: KindEntry, Family: f, Set: set}, p, emit)
		}
	}
}

// emitPrefix emits entries that cover a prefix: ipsets have none of length 0.
func emitPrefix(k Key, p netip.Prefix, emit func(Key, Value)) {
	if p.Bits() > 0 {
		k.To, k.Bits = netip.AddrPortFrom(p.Masked().Addr(), 0), uint8(p.Bits())
		emit(k, Value{})
		return
	}
	for _, half := range halves(model.FamilyOf(p.Addr())) {
		emitPrefix(k, half, emit)
	}
}

func loopback(f model.Family) netip.Prefix {
	if f == model.IPv4 {
		return netip.MustParsePrefix("127.0.0.0/8")
	}
	return netip.MustParsePrefix("::1/128")
}

func halves(f model.Family) [2]netip.Prefix {
	if f == model.IPv4 {
		return [2]netip.Prefix{netip.MustParsePrefix("0.0.0.0/1"), netip.MustParsePrefix("128.0.0.0/1")}
	}
	return [2]netip.Prefix{netip.MustParsePrefix("::/1"), netip.MustParsePrefix("8000::/1")}
}

// chains are the rules of every chain, in the very words of iptables-save: what
// is read back is compared with them.
func (c *Compiler) chains(f model.Family, host *model.Host) (all [numChains][]string) {
	r := rules{c.marks, f}
	arriving, sent := r.pods(host.Pods)
	all[mangleIn] = r.classify(arriving, false)
	all[mangleOut] = append([]string{
		// What IPVS has forwarded comes through here as well. It must not be routed
		// by our rule once more.
		r.has(r.claimed) + " -g " + mangleLast.name(),
	}, r.classify(sent, true)...)
	all[manglePort] = []string{
		"-p tcp" + r.translate(NodePortTCP, "dst"),
		"-p udp" + r.translate(NodePortUDP, "dst"),
		r.translate(NodePortSCTP, "dst,dst")[1:],
	}
	all[mangleLast] = []string{r.has(r.claimed) + r.set(0, r.claimed|r.denied|r.numberMask())}
	all[natIn] = []string{r.has(r.claimed) + " -j ACCEPT"}
	all[natOut] = all[natIn]
	all[natLast] = []string{
		r.in(LoopBack, "dst,dst,src") + " -j MASQUERADE",
		r.in(VirtualIPs, "src") + " -m set ! --match-set " + VirtualIPs.Name(f) + " dst -j MASQUERADE",
		r.hasNot(r.masquerade) + " -j RETURN",
		r.set(0, r.masquerade)[1:],
		"-j MASQUERADE" + c.options.randomly(),
	}
	all[filterIn] = r.refuse()
	// What IPVS has forwarded comes through here as well, most of it from others.
	all[filterOut] = append(r.refuse(), "-m addrtype --src-type LOCAL "+r.unallocated())
	all[filterPort] = []string{r.in(HealthCheckPort, "dst") + " -j ACCEPT"}
	all[filterForward] = append(r.refuse(), r.unallocated(), "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	return all
}

// rules writes the rules of one family.
type rules struct {
	marks
	family model.Family
}

func comment(text string) string { return `-m comment --comment "` + text + `"` }

func (r rules) has(bits uint32) string { return fmt.Sprintf("-m mark --mark 0x%x/0x%x", bits, bits) }

func (r rules) hasNot(bits uint32) string {
	return fmt.Sprintf("-m mark ! --mark 0x%x/0x%x", bits, bits)
}

func (r rules) set(bits, mask uint32) string {
	return fmt.Sprintf(" -j MARK --set-xmark 0x%x/0x%x", bits, mask)
}

func (r rules) in(s SetID, fields string) string {
	return "-m set --match-set " + s.Name(r.family) + " " + fields
}

func (r rules) translate(s SetID, fields string) string {
	return " -j SET --map-set " + s.Name(r.family) + " " + fields + " --map-mark"
}

// pods are matches of this node's pods, among what arrives and what the host
// sends itself: that comes by no interface and can only be told by address.
func (r rules) pods(m model.PodMatch) (arriving, sent []string) {
	switch {
	case m.Interface != "":
		return []string{"-i " + m.Interface}, nil
	case m.Prefix != "":
		return []string{"-i " + m.Prefix + "+"}, nil
	}
	for _, p := range model.Canonical(m.CIDRs) {
		if model.FamilyOf(p.Addr()) == r.family {
			arriving = append(arriving, "-s "+p.String())
		}
	}
	return arriving, arriving
}

const (
	isNew = "-m conntrack --ctstate NEW"
	isOld = "-m conntrack ! --ctstate NEW"
)

// classify turns the mark of a packet into the answer of its front for its
// sender. Only the first packet of a connection is dropped, refused or
// masqueraded; all others must only find their way to IPVS.
func (r rules) classify(pods []string, host bool) []string {
	lines := []string{
		// Connections of another proxy, from before we took over.
		"-m conntrack --ctstate DNAT -j RETURN",
		r.in(Guarded, "dst,dst") + " -m set ! --match-set " + Allowed.Name(r.family) + " dst,dst,src " + isNew + " -j DROP",
		r.set(r.masquerade, r.all())[1:],
	}
	for _, pod := range pods {
		lines = append(lines, pod+r.set(0, r.masquerade))
	}
	lines = append(lines,
		r.translate(ClusterIPs, "dst,dst")[1:],
		r.translate(ExternalIPs, "dst,dst")[1:],
		r.translate(LoadBalancer, "dst,dst")[1:])
	for _, proto := range []string{"tcp", "udp", "sctp"} { // cluster IPs have no other ports
		lines = append(lines, "-p "+proto+" "+r.hasNot(r.claimed)+" "+r.in(VirtualIPs, "dst")+r.set(r.claimed|r.denied, r.all()))
	}
	lines = append(lines, "! -d "+loopback(r.family).String()+" "+r.hasNot(r.claimed)+" "+r.in(NodePortRanges, "dst")+
		" -m addrtype --dst-type LOCAL -j "+manglePort.name())
	if host {
		lines = append(lines, r.translate(Host, "dst,dst")[1:])
	}
	for _, pod := range pods {
		lines = append(lines, pod+r.translate(Pods, "dst,dst"))
	}
	return append(lines,
		r.has(r.all())+" "+isNew+" -j DROP",
		r.hasNot(r.claimed)+r.set(0, r.masquerade|r.denied),
		isOld+r.set(0, r.masquerade|r.denied),
		// What is refused is not delivered here: an answer needs an address that
		// this host has, and that of the front it has not.
		r.has(r.claimed|r.denied)+r.set(0, r.claimed),
	)
}

// unallocated is the rule for what could be for a cluster IP, and is for none. It
// comes behind destination NAT: an address that no Service of ours has may be
// another proxy's (label service-proxy-name).
func (r rules) unallocated() string {
	return r.in(ServiceCIDRs, "dst") + " -m addrtype ! --dst-type LOCAL " + isNew + " -m conntrack ! --ctstate DNAT -j DROP"
}

// refuse is the rule for what has no endpoint.
func (r rules) refuse() []string {
	how := "icmp-port-unreachable"
	if r.family == model.IPv6 {
		how = "icmp6-port-unreachable"
	}
	return []string{r.has(r.denied) + " -j REJECT --reject-with " + how}
}
