// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Options are the settings of this data plane.
type Options struct {
	// Mark is the fwmark bit of packets to masquerade; 0 means
	// config.DefaultMark.
	Mark uint32
	// Families are the IP families to serve; none means both. Ports of another family are
	// a Gap.
	Families []model.Family
	// Liberal passes endpoints' answers that connection tracking finds invalid, which are
	// dropped otherwise. It is for nodes with nf_conntrack_tcp_be_liberal, on which
	// few are.
	Liberal bool
	// Count adds counters of connections to the elements of frontends, CountEndpoints to
	// those of their endpoints, too.
	Count, CountEndpoints bool
}

func (o Options) families() []model.Family { return model.FamiliesOr(o.Families) }

// Compiler turns ports into objects (dataplane.Compiler). It is safe for concurrent use.
type Compiler struct {
	options Options
	zero    *nft.Count // of new counters
	// ofEndpoint is the Body of endpoints' elements: a counter, or nil.
	ofEndpoint *nft.Body
	bit        uint32
	picks      sync.Map // pick -> *pickChain, up to keptPicks endpoints: thousands of ports share them
	affine     sync.Map // affinePick -> []*pickChain, the first keptPicks
	affines    atomic.Int64
}

// keptPicks bounds the cache of a compiler: 12 chains (2 maps, 3 classes, 2 pools)
// for each number of endpoints up to it. Larger pools are few, and building their chain costs
// little beside their elements.
const keptPicks = 1024

// pickChain is a pick chain ready to be emitted.
type pickChain struct {
	name   string
	keys   [2]nft.Key // by family
	bodies [2]nft.Value
}

// NewCompiler returns a compiler.
func NewCompiler(o Options) *Compiler {
	c := &Compiler{options: o, bit: cmp.Or(o.Mark, config.DefaultMark), zero: &nft.Count{}}
	if o.CountEndpoints {
		c.ofEndpoint = &nft.Body{Counter: c.zero}
	}
	return c
}

func (c *Compiler) Equal(a, b nft.Value) bool { return a.Equal(b) }

// Rank puts referenced objects before those that
// refer to them, source ranges before slots, and both before the answers that need them.
// Answers for one origin precede the common one, which that origin would get otherwise.
// So after each of several transactions of a large port, packets find the slots that they
// are sent to, under the right policy.
func (c *Compiler) Rank(k nft.Key) int {
	switch k.Kind {
	case nft.KindTable:
		return 0
	case nft.KindSet:
		return 1
	case nft.KindChain:
		return 2 + depth(k.Name())
	}
	switch k.Set {
	case setAllowed:
		return 7
	case setSourceRanges:
		return 8
	case setAffinitySlots, setAffinityNodeSlots: // an endpoint's handle
		return 10
	case setVIPsPod, setVIPsHost, setNodePortsPod, setNodePortsHost:
		return 11
	case setVIPs, setNodePorts:
		return 12
	}
	return 9
}

// Admits returns, for a source range, the element that restricts its frontend, and the range.
func (*Compiler) Admits(k nft.Key) (guard nft.Key, clients netip.Prefix) {
	if k.Kind != nft.KindElement || k.Set != setAllowed {
		return guard, clients
	}
	return nft.AddrPortKey(setSourceRanges, k.Proto, k.AddrPort()), k.Prefix()
}

// depth orders chains: those that jump or go to others have a greater depth.
func depth(name string) int {
	switch {
	case name == chainReject, name == chainMasquerading, hasPrefix(name, "pick-", "nodepick-", "affinity-send", "nodeaffinity-send"):
		return 0
	case name == chainNoService, hasPrefix(name, "affinity-known", "nodeaffinity-known", "affinity-chosen", "nodeaffinity-chosen"):
		return 1
	case hasPrefix(name, "affinity-over", "nodeaffinity-over"):
		return 2
	case hasPrefix(name, "affinity-", "nodeaffinity-"), name == chainNodePrerouting, name == chainNodeOutput:
		return 3
	}
	return 4
}

func hasPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// DeleteDelay delays the deletion of chains, and of sets that rules fill: to create or
// delete a chain, the kernel checks the whole table, which takes milliseconds with many Services, and
// before Linux 6.2 a chain cannot be deleted in the same transaction as the element
// that refers to it.
func (c *Compiler) DeleteDelay(k nft.Key) time.Duration {
	switch k.Kind {
	case nft.KindChain:
		if hasPrefix(k.Name(), "pick-", "nodepick-", "affinity-", "nodeaffinity-") {
			return time.Minute
		}
	case nft.KindSet:
		if k.Name() == earlierAffinityFull || slices.ContainsFunc(affinitySets, func(s *nft.Set) bool { return s.Name == k.Name() }) {
			return time.Minute
		}
	}
	return 0
}

func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(nft.Key, nft.Value)) []model.Gap {
	if !slices.Contains(c.options.families(), port.ID.Family) {
		return []model.Gap{model.MissingFamily(port.ID.Family, "nftables")}
	}
	p := portCompiler{
		Compiler: c, host: host, port: port, emit: emit,
		comment: nft.CommentText(port.ID.String()),
	}
	p.measure()
	p.reportScheduler()
	for i := range port.Frontends {
		p.frontend(&port.Frontends[i])
	}
	p.hairpins()
	p.endpointPorts()
	return p.gaps
}

// portCompiler compiles one port.
type portCompiler struct {
	*Compiler
	host    *model.Host
	port    *model.Port
	emit    func(nft.Key, nft.Value)
	comment string
	gaps    []model.Gap
	shared  keySet // emitted by once: a port emits nothing twice
}

// keySet is a set of keys. The first few take no allocation.
type keySet struct {
	few  [4]nft.Key
	n    int // of few
	more map[nft.Key]struct{}
}

// add reports whether the key is new.
func (s *keySet) add(k nft.Key) bool {
	if slices.Contains(s.few[:s.n], k) {
		return false
	}
	if s.n < len(s.few) {
		s.few[s.n] = k
		s.n++
		return true
	}
	if _, there := s.more[k]; there {
		return false
	}
	if s.more == nil {
		s.more = map[nft.Key]struct{}{}
	}
	s.more[k] = struct{}{}
	return true
}

// measure reports endpoints beyond bankSize.
func (p *portCompiler) measure() {
	if most := p.port.Widest(); most > bankSize {
		p.gaps = append(p.gaps, model.Gap{Detail: fmt.Sprintf("%d endpoints: only the first %d are used", most, bankSize)})
	}
}

// once emits an object that several frontends of a port may need.
func (p *portCompiler) once(k nft.Key, v nft.Value) {
	if p.shared.add(k) {
		p.emit(k, v)
	}
}

func (p *portCompiler) gap(f *model.Frontend, detail string) {
	p.gaps = append(p.gaps, model.Gap{Frontend: f.At, Detail: detail})
}

// frontend emits the elements of one frontend.
func (p *portCompiler) frontend(f *model.Frontend) {
	maps := mapsOf(f)
	if f.Kind == model.KindNodePort && p.host.NodePorts.Loopback[p.port.ID.Family] {
		p.gap(f, "node ports do not answer on loopback addresses in this mode")
	}
	if f.Kind == model.KindClusterIP {
		p.once(nft.AddrKey(setClusterIPs, f.At.Addr()), nft.Value{})
	}
	if f.Restricted && !p.restrict(f) {
		p.answer(maps[model.FromOutside], f, nft.DropValue(p.comment))
		return
	}
	answers := p.answers(f)
	base := common(answers)
	p.answer(maps[model.FromOutside], f, p.value(f, answers, model.FromOutside, base))
	for _, o := range []model.Origin{model.FromPod, model.FromHost} {
		if answers[o] == answers[model.FromOutside].seenBy(o, base) {
			continue
		}
		own := asIs
		if answers[o].snat != asIs.masquerades(o) {
			own = map[bool]class{true: snat, false: noSNAT}[answers[o].snat]
		}
		p.answer(maps[o], f, p.value(f, answers, o, own))
	}
	p.slots(f, answers)
}

// mapsOf returns the maps of a frontend's answers: one that all origins look up last, and
// one for each origin that may have its own.
func mapsOf(f *model.Frontend) [model.Origins]*nft.Set {
	if f.Kind == model.KindNodePort {
		return [...]*nft.Set{model.FromPod: setNodePortsPod, model.FromHost: setNodePortsHost, model.FromOutside: setNodePorts}
	}
	return [...]*nft.Set{model.FromPod: setVIPsPod, model.FromHost: setVIPsHost, model.FromOutside: setVIPs}
}

// slotsOf returns the map of a frontend's endpoints.
func slotsOf(f *model.Frontend) *nft.Set {
	if f.Kind == model.KindNodePort {
		return setNodeSlots
	}
	return setSlots
}

// element returns the key of a frontend in a map.
func element(set *nft.Set, proto model.Proto, f *model.Frontend) nft.Key {
	if f.Kind == model.KindNodePort {
		return nft.PortKey(set, model.FamilyOf(f.At.Addr()), proto, f.At.Port())
	}
	return nft.AddrPortKey(set, proto, f.At)
}

func (p *portCompiler) answer(set *nft.Set, f *model.Frontend, v nft.Value) {
	if p.options.Count && v.Body != nil {
		body := *v.Body // it may be shared
		body.Counter = p.zero
		v.Body = &body
	}
	p.emit(element(set, p.port.ID.Proto, f), v)
}

// restrict emits a frontend's source ranges, and reports whether they can be enforced. Node
// ports have none; one that has is closed to all.
func (p *portCompiler) restrict(f *model.Frontend) bool {
	if f.Kind == model.KindNodePort {
		p.gap(f, "source ranges of node ports are not supported in this mode: closed to all")
		return false
	}
	p.emit(element(setSourceRanges, p.port.ID.Proto, f), nft.Value{})
	for _, r := range model.FamilyOf(f.At.Addr()).Prefixes(f.Allow) {
		p.emit(element(setAllowed, p.port.ID.Proto, f).Within(r), nft.Value{})
	}
	return true
}

// hairpins emits the addresses of endpoints whose connections to themselves must be
// masqueraded.
func (p *portCompiler) hairpins() {
	var local []netip.Addr
	for _, pool := range p.port.Pools() {
		for _, e := range pool.Endpoints {
			if p.host.NeedsHairpinSNAT(e) {
				local = append(local, e.Addr.Addr())
			}
		}
	}
	slices.SortFunc(local, netip.Addr.Compare)
	for _, a := range slices.Compact(local) {
		p.emit(nft.AddrKey(setHairpin, a), nft.Value{})
	}
}

// endpointPorts emits the endpoints' ports, for the chain that drops invalid answers.
func (p *portCompiler) endpointPorts() {
	if p.options.Liberal || p.port.ID.Proto != model.TCP {
		return
	}
	last := uint16(0) // nearly always all endpoints have the same port
	for _, pool := range p.port.Pools() {
		for _, e := range pool.Endpoints {
			if n := e.Addr.Port(); n != last {
				last = n
				p.once(nft.PortKey(setEndpointPorts, p.port.ID.Family, model.TCP, n), nft.Value{})
			}
		}
	}
}
