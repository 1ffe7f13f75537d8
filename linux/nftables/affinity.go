// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// ClientIP affinity is one map of the table: client . port -> handle, where each
// entry is forgotten after the port's timeout. It exists as long as any port
// needs it. Everything else is elements of maps and chains that ports share:
//
//	vips ─▶ affinity-N-T: what is the port known by? (affinity-ports)
//	        in affinity: restart its timeout ─▶ affinity-known
//	        in affinity-spare: the same
//	        too many new ones of the port or of its namespace? ─▶ affinity-over-N-T
//	        else: number := random mod N
//	              affinity-slots: address . protocol . port . number ─▶ handle
//	              remember it ─▶ affinity-chosen
//	affinity-over-N-T: the same with affinity-spare
//	affinity-chosen: affinity-send; drop
//	affinity-send: affinity-endpoints: address . protocol . port . handle
//	              ─▶ endpoint (DNAT)
//	affinity-known: affinity-send; stale affinity entry: delete
//
// A client has one entry for a Service port, whichever of its addresses it
// connects to. Earlier choices are not kept, so an endpoint that
// comes back does not get its clients back. A handle is an endpoint's address:
// that stays the same wherever the endpoint is among the slots.
//
// The text of nft can look up something in a map but cannot look up with that in
// another. Rules therefore use the packet's own addresses as variables: while the
// endpoint is looked up, the source is what the port is known by and the
// destination is the handle. Connection tracking has the addresses that the packet
// came with. The source is put back before the destination is rewritten, and a
// packet for which there is no endpoint is dropped, so that none leaves with the
// variables in it. Only the first packet of a connection comes here.
//
// Addresses of clients are easily forged, and one Service must not fill the map. The kernel
// cannot count the entries of one Service or namespace, but it can limit how often they are made: each port and
// each namespace may make a share of entries at once, and as many again in a day
// (model.AffinityPortShare). As no entry lives longer than a day without its
// client, a namespace has at most twice its share of the map, 16 that attack at once do not fill it, and nothing is
// read or evicted for it. Clients that were remembered stay so, and new ones are not. Clients beyond
// the share are remembered in affinity-spare as long as there is room, so that one busy
// Service on a quiet node may have more. Who finds no room there either is served, not
// remembered, and its port is in affinity-crowded, which Problems reads.
//
// A rule cannot change an entry's value: it deletes one that is out of date and
// makes another. Kernels before 6.5, except stable ones that have its garbage
// collection of sets, do not free what a rule deletes (nft_rhash_delete): some 130
// bytes for each client whose endpoint was removed, and its room in the map until the map is deleted.

// fullFor is how long it is known that a port's clients found no room.
const fullFor = 5 * time.Minute

// shareTime is in what time a share is given again: the longest time that an entry may live
// without its client (maxAffinity of the API, 86,400 s).
const shareTime = 24 * time.Hour

// crowdedProblems tells whose clients find no room, by Service and the IP families concerned; at most
// model.MaxProblems for each namespace.
func crowdedProblems(services map[model.ServiceName][2]bool) (all []model.Problem) {
	last, more := "", 0
	start := 0 // of the namespace's
	for _, name := range slices.SortedFunc(maps.Keys(services), model.ServiceName.Compare) {
		if name.Namespace != last {
			if more > 0 {
				model.More(all[start:], more)
			}
			last, more, start = name.Namespace, 0, len(all)
		}
		if len(all)-start == model.MaxProblems {
			more++
			continue
		}
		var of []string
		for _, f := range model.Families() {
			if services[name][f] {
				of = append(of, f.String())
			}
		}
		all = append(all, model.Problem{
			Object: "Service " + name.String(), Why: model.WhyFull,
			Detail: fmt.Sprintf("session affinity: too many %s clients; new ones are served without it (%d a day for each port and %d for the namespace have it in any case)",
				strings.Join(of, " and "), model.AffinityPortShare, model.AffinityNamespaceShare),
		})
	}
	if more > 0 {
		model.More(all[start:], more)
	}
	return all
}

// affinePick is a chain that serves new connections of ports with affinity:
// like a pick chain, except for clients that have an endpoint already.
type affinePick struct {
	pick
	timeout time.Duration
}

// name returns the chain's name, such as "affinity-5-10800s-snat".
func (p affinePick) name() string {
	size := strconv.Itoa(int(p.count)) + "-" + strconv.FormatInt(int64(p.seconds()/time.Second), 10) + "s" + classSuffix[p.class]
	return affinityChain(p.slots, size, p.second)
}

// seconds is the timeout in whole seconds, at least one.
func (p affinePick) seconds() time.Duration {
	return max(p.timeout.Round(time.Second), time.Second)
}

// affinityChain names one of the chains for affinity.
func affinityChain(slots *nft.Set, what string, second bool) string {
	name := "affinity-" + what
	if slots == setAffinityNodeSlots {
		name = "node" + name
	}
	if second {
		name += "-second"
	}
	return name
}

// parseAffinePick is the reverse of name.
func parseAffinePick(name string) (p affinePick, ok bool) {
	p.slots = setAffinitySlots
	rest, node := strings.CutPrefix(name, "node")
	if node {
		p.slots = setAffinityNodeSlots
	}
	if rest, ok = strings.CutPrefix(rest, "affinity-"); !ok {
		return p, false
	}
	rest, p.second = strings.CutSuffix(rest, "-second")
	rest, p.class = cutClass(rest)
	count, seconds, _ := strings.Cut(strings.TrimSuffix(rest, "s"), "-")
	n, err := strconv.ParseUint(count, 10, 16)
	if err != nil || n == 0 {
		return p, false
	}
	s, err := strconv.ParseUint(seconds, 10, 32)
	p.count, p.timeout = uint32(n), time.Duration(s)*time.Second
	return p, err == nil && s > 0 && p.name() == name
}

// ports returns the map that states what a port is known by.
func (p affinePick) ports() *nft.Set {
	if p.slots == setAffinityNodeSlots {
		return setAffinityNodePorts
	}
	return setAffinityPorts
}

// tenants returns the map that states by what the port's namespace is counted.
func (p affinePick) tenants() *nft.Set {
	if p.slots == setAffinityNodeSlots {
		return setAffinityNodeTenants
	}
	return setAffinityTenants
}

// endpoints returns the map of the pool's endpoints by their handles.
func (p pick) endpoints() *nft.Set {
	switch {
	case p.slots == setAffinityNodeSlots && p.second:
		return setAffinityNodeEndpointsSecond
	case p.slots == setAffinityNodeSlots:
		return setAffinityNodeEndpoints
	case p.second:
		return setAffinityEndpointsSecond
	}
	return setAffinityEndpoints
}

// chain names the chain of a purpose that picks of one map and pool share.
func (p affinePick) chain(purpose string) string { return affinityChain(p.slots, purpose, p.second) }

// number sets the destination to the handle of one of the first n slots.
func (p affinePick) number(n uint32) nft.SetAddr {
	return nft.SetAddr{Field: nft.Daddr, Map: p.slots, Number: nft.Numgen{Mod: n, Offset: p.first()}}
}

// recall sets the destination to the handle that the client had last.
var (
	recall      = nft.SetAddr{Field: nft.Daddr, Map: setAffinity}
	recallSpare = nft.SetAddr{Field: nft.Daddr, Map: setAffinitySpare}
)

// over is the chain for clients beyond a share.
func (p affinePick) over() string {
	p.class = asIs // the class was applied before
	_, size, _ := strings.Cut(p.name(), "affinity-")
	return affinityChain(p.slots, "over-"+strings.TrimSuffix(size, "-second"), p.second)
}

// rules returns the chain's rules. A slot may be gone and the chain not yet, for a
// moment: the first one is never gone.
func (p affinePick) rules(bit uint32) []nft.Rule {
	remember, known := nft.Update{Set: setAffinity, Timeout: p.seconds()}, nft.Jump{Chain: p.chain("known")}
	over := nft.Goto{Chain: p.over()}
	return []nft.Rule{
		nft.NewRule(append(p.class.statements(bit), nft.SetAddr{Field: nft.Saddr, Map: p.ports()})...),
		{Statements: []nft.Statement{recall, remember, known}, Comment: "affinity hit"},
		nft.NewRule(recallSpare, nft.Update{Set: setAffinitySpare, Timeout: p.seconds()}, known),
		{Statements: []nft.Statement{nft.Over{Set: setAffinityPortShares, Burst: model.AffinityPortShare, Period: shareTime}, over}, Comment: "over the port's affinity share"},
		{Statements: []nft.Statement{
			nft.SetAddr{Field: nft.Daddr, Map: p.tenants()},
			nft.Over{Set: setAffinityShares, Burst: model.AffinityNamespaceShare, Period: shareTime},
			over,
		}, Comment: "over the namespace's affinity share"},
		nft.NewRule(p.number(1)),
		nft.NewRule(p.number(p.count)),
		nft.NewRule(remember, nft.Goto{Chain: p.chain("chosen")}),
		nft.NewRule(over),
	}
}

// overRules are those for clients beyond a share.
func (p affinePick) overRules() []nft.Rule {
	chosen := nft.Goto{Chain: p.chain("chosen")}
	return []nft.Rule{
		nft.NewRule(p.number(1)),
		nft.NewRule(p.number(p.count)),
		nft.NewRule(nft.Update{Set: setAffinitySpare, Timeout: p.seconds()}, chosen),
		{Statements: []nft.Statement{nft.Update{Set: setAffinityFull, Timeout: fullFor}}, Comment: "affinity map full"},
		nft.NewRule(chosen),
	}
}

// shared are the chains that those above go to, the deepest first.
func (p affinePick) shared() []*pickChain {
	send := nft.Jump{Chain: p.chain("send")}
	return []*pickChain{
		newPickChain(p.chain("send"), []nft.Rule{nft.NewRule(nft.RestoreSource{}, nft.Lookup{Set: setL4}, nft.DNATMap{Map: p.endpoints()})}),
		newPickChain(p.chain("known"), []nft.Rule{
			nft.NewRule(send),
			{Statements: []nft.Statement{nft.SetAddr{Field: nft.Saddr, Map: p.ports()}, nft.Delete{Set: setAffinity}, nft.Delete{Set: setAffinitySpare}}, Comment: "stale affinity entry"},
		}),
		newPickChain(p.chain("chosen"), []nft.Rule{
			nft.NewRule(recallSpare),
			{Statements: []nft.Statement{recall}, Comment: "chosen by another packet of the client"},
			nft.NewRule(send),
			{Statements: []nft.Statement{p.number(1), send}, Comment: "endpoint just removed"},
			nft.NewRule(nft.Drop{}),
		}),
		newPickChain(p.over(), p.overRules()),
	}
}

// affinePick returns a chain, with those that it goes to before it; made once if
// it is one to keep.
func (c *Compiler) affinePick(p affinePick) []*pickChain {
	if known, ok := c.affine.Load(p); ok {
		return known.([]*pickChain)
	}
	made := append(p.shared(), newPickChain(p.name(), p.rules(c.bit)))
	if c.affines.Add(1) > keptPicks {
		return made
	}
	known, _ := c.affine.LoadOrStore(p, made)
	return known.([]*pickChain)
}

// affinity emits the chains for one pool of a frontend, and the sets that their rules
// fill, and returns the name of the chain to go to.
func (p *portCompiler) affinity(f *model.Frontend, pool *model.Pool, c class, second bool) string {
	family := p.port.ID.Family
	for _, set := range affinitySets {
		p.once(nft.SetObject(family, set))
	}
	name := ""
	size := sizeOf(pool)
	for _, chain := range p.affinePick(affinePick{pick{slots: affinitySlotsOf(f), class: c, second: second, count: size}, p.port.SessionAffinity}) {
		p.once(chain.keys[family], chain.bodies[family])
		name = chain.name
	}
	return name
}

// affinitySlotsOf returns the map of the handles of a frontend's endpoints.
func affinitySlotsOf(f *model.Frontend) *nft.Set {
	if f.Kind == model.KindNodePort {
		return setAffinityNodeSlots
	}
	return setAffinitySlots
}

// affineSlots emits what the port is known by, for a frontend, and the endpoints of
// one of its pools.
func (p *portCompiler) affineSlots(f *model.Frontend, pool *model.Pool, second bool) {
	at := affinePick{pick: pick{slots: affinitySlotsOf(f), second: second}}
	p.once(element(at.ports(), p.port.ID.Proto, f), nft.AddressValue(p.identity()))
	p.once(element(at.tenants(), p.port.ID.Proto, f), nft.AddressValue(p.tenant()))
	slot := element(at.slots, p.port.ID.Proto, f)
	lowest := lowestPorts(pool.Endpoints)
	for i := range int(sizeOf(pool)) {
		e := pool.Slot(i)
		slot.Slot = uint16(int(at.first()) + i)
		handle := nft.AddressValue(handleOf(e.Addr, lowest))
		p.emit(slot, handle)
		p.once(handleElement(at.endpoints(), slot, handle), nft.EndpointValue(e.Addr))
	}
}

// handleElement names the element of an endpoint by its slot's key and its handle.
func handleElement(set *nft.Set, slot nft.Key, handle nft.Value) nft.Key {
	k := nft.Key{Kind: nft.KindElement, Family: slot.Family, Set: set, Proto: slot.Proto, Port: slot.Port, Addr: slot.Addr}
	if set.Key[0] == nft.Saddr {
		k.Addr = handle.To
		return k
	}
	return k.WithSecond(handle.Endpoint(slot.Family).Addr())
}

// lowestPorts are the lowest ports of a pool's addresses.
func lowestPorts(endpoints []model.Endpoint) map[netip.Addr]uint16 {
	lowest := make(map[netip.Addr]uint16, len(endpoints))
	for _, e := range endpoints {
		if port, ok := lowest[e.Addr.Addr()]; !ok || e.Addr.Port() < port {
			lowest[e.Addr.Addr()] = e.Addr.Port()
		}
	}
	return lowest
}

// handleOf returns the handle of an endpoint: its address or, where the pool has
// that address with a lower port, too, a hash of address and port. When the lower
// one is added or removed, clients of the other choose again.
func handleOf(at netip.AddrPort, lowest map[netip.Addr]uint16) netip.Addr {
	if lowest[at.Addr()] == at.Port() {
		return at.Addr()
	}
	sum := sha256.Sum256([]byte(at.String()))
	a, _ := netip.AddrFromSlice(sum[:at.Addr().BitLen()/8])
	return a
}

// identity is what the port is known by in setAffinity, written as an address: a hash of its
// first frontend. An IPv4 address has 32 bits, few enough that a tenant could choose an
// address and a port with the number of another tenant's; with the host's salt it cannot be
// chosen. Two ports that have the same by chance (one pair among 10,000 ports of IPv4 in one
// of a hundred clusters) share clients: one of both chooses again whenever it changes
// between them.
func (p *portCompiler) identity() netip.Addr {
	at := p.port.Frontends[0].At
	var b [18]byte
	a := at.Addr().As16()
	binary.BigEndian.PutUint16(b[copy(b[:], a[:]):], at.Port())
	return p.numbered("port", b[:])
}

// tenant is by what the port's namespace is counted: a number like identity. Two namespaces
// that have the same have one share together.
func (p *portCompiler) tenant() netip.Addr {
	return p.numbered("namespace", []byte(p.port.ID.Service.Namespace))
}

// numbered returns the number of something of a kind, written as an address of the port's family.
func (p *portCompiler) numbered(kind string, what []byte) netip.Addr {
	sum := p.host.Number(kind, what)
	a, _ := netip.AddrFromSlice(sum[:p.port.ID.Family.Bits()/8])
	return a
}
