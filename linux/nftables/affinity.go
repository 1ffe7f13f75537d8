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

// ClientIP affinity is one map of the table: client . port -> handle, whose entries
// expire after the port's affinity timeout. It exists as long as any port
// needs it. The rest is elements of maps, and chains that ports share:
//
//	vips ─▶ affinity-N-T: the port's identity (affinity-ports)
//	        client in affinity: restart its timeout ─▶ affinity-known
//	        client in affinity-spare: the same
//	        too many new clients of the port or its namespace? ─▶ affinity-over-N-T
//	        else: number := random mod N
//	              affinity-slots: address . protocol . port . number ─▶ handle
//	              add to affinity ─▶ affinity-chosen
//	affinity-over-N-T: the same with affinity-spare
//	affinity-chosen: affinity-send; drop
//	affinity-send: affinity-endpoints: address . protocol . port . handle
//	              ─▶ endpoint (DNAT)
//	affinity-known: affinity-send; stale affinity entry: delete
//
// A client has one entry for a Service port, whichever frontend it
// connects to. Earlier choices are not kept, so an endpoint that
// comes back does not get its clients back. A handle is an endpoint's address:
// it does not change when the endpoint moves to another slot.
//
// The language of nft cannot use the result of a lookup as the key of another one.
// Rules therefore use the packet's own addresses as variables: while the
// endpoint is looked up, the source is the port's identity and the
// destination is the handle. Connection tracking has the packet's original
// addresses. The source is restored before the destination is rewritten, and a
// packet without an endpoint is dropped, so that none leaves with the
// variables in it. Only first packets of connections traverse these chains.
//
// Addresses of clients are easily forged, and one Service must not fill the map. The kernel
// cannot count the entries of one Service or namespace, but it can limit their rate: each port and
// each namespace may add a share of entries at once, and as many again in a day
// (model.AffinityPortShare). As no entry lives longer than a day without its
// client, a namespace has at most twice its share of the map, and 16 attackers at once do not fill it. Nothing is
// read or evicted for that. Clients in the map stay, and new ones beyond the share
// go to affinity-spare as long as there is room, so that one busy
// Service on a quiet node may have more. If affinity-spare is full, too, they are served without
// affinity, and their port is in affinity-crowded, which Problems reads.
//
// A rule cannot change an entry's value: it deletes a stale entry and adds
// another. Kernels before 6.5, except stable ones with its garbage
// collection of sets, do not free elements that a rule deletes (nft_rhash_delete): some 130
// bytes for each client whose endpoint was removed, and its room in the map, until the map is deleted.

// fullFor is how long a port stays in affinity-crowded after a client found no room.
const fullFor = 5 * time.Minute

// shareTime is the time in which a share is granted again: the longest affinity timeout of
// the API, 86,400 s.
const shareTime = 24 * time.Hour

// crowdedProblems describes the Services whose clients found no room, and in which IP families; at most
// model.MaxProblems for each namespace.
func crowdedProblems(services map[model.ServiceName][2]bool) (all []model.Problem) {
	last, more := "", 0
	start := 0 // index of the namespace's first
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

// affinePick is a pick chain of ports with affinity: clients that already have an endpoint
// keep it.
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

// affinityChain returns the name of a chain for affinity.
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

// ports returns the map of frontends to their ports' identities.
func (p affinePick) ports() *nft.Set {
	if p.slots == setAffinityNodeSlots {
		return setAffinityNodePorts
	}
	return setAffinityPorts
}

// tenants returns the map of frontends to the numbers of their namespaces.
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

// chain returns the name of a chain that picks of one map and pool share.
func (p affinePick) chain(purpose string) string { return affinityChain(p.slots, purpose, p.second) }

// number sets the destination to the handle of one of the first n slots.
func (p affinePick) number(n uint32) nft.SetAddr {
	return nft.SetAddr{Field: nft.Daddr, Map: p.slots, Number: nft.Numgen{Mod: n, Offset: p.first()}}
}

// recall sets the destination to the client's last handle.
var (
	recall      = nft.SetAddr{Field: nft.Daddr, Map: setAffinity}
	recallSpare = nft.SetAddr{Field: nft.Daddr, Map: setAffinitySpare}
)

// over returns the name of the chain for clients beyond a share.
func (p affinePick) over() string {
	p.class = asIs // the pick chain has applied the class
	_, size, _ := strings.Cut(p.name(), "affinity-")
	return affinityChain(p.slots, "over-"+strings.TrimSuffix(size, "-second"), p.second)
}

// rules returns the chain's rules. While a pool shrinks a slot may be missing: then the first slot is
// used, which always exists.
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

// overRules returns the rules for clients beyond a share.
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

// shared returns the chains that the pick chain goes to, the deepest first.
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

// affinePick returns a chain, after the chains that it goes to. The first keptPicks are
// cached.
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

// affinity emits the chains for one pool of a frontend, with the sets that their rules
// fill, and returns the name of its pick chain.
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

// affineSlots emits the identity of the port and the number of its namespace for a frontend, and the
// endpoints of one of its pools.
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

// handleElement returns the key of an endpoint, of its slot's key and its handle.
func handleElement(set *nft.Set, slot nft.Key, handle nft.Value) nft.Key {
	k := nft.Key{Kind: nft.KindElement, Family: slot.Family, Set: set, Proto: slot.Proto, Port: slot.Port, Addr: slot.Addr}
	if set.Key[0] == nft.Saddr {
		k.Addr = handle.To
		return k
	}
	return k.WithSecond(handle.Endpoint(slot.Family).Addr())
}

// lowestPorts returns the lowest port of each address of a pool.
func lowestPorts(endpoints []model.Endpoint) map[netip.Addr]uint16 {
	lowest := make(map[netip.Addr]uint16, len(endpoints))
	for _, e := range endpoints {
		if port, ok := lowest[e.Addr.Addr()]; !ok || e.Addr.Port() < port {
			lowest[e.Addr.Addr()] = e.Addr.Port()
		}
	}
	return lowest
}

// handleOf returns the handle of an endpoint: its address or, if the pool has
// that address with a lower port, too, a hash of address and port. When the endpoint with the lower port
// is added or removed, clients of the other one are balanced again.
func handleOf(at netip.AddrPort, lowest map[netip.Addr]uint16) netip.Addr {
	if lowest[at.Addr()] == at.Port() {
		return at.Addr()
	}
	sum := sha256.Sum256([]byte(at.String()))
	a, _ := netip.AddrFromSlice(sum[:at.Addr().BitLen()/8])
	return a
}

// identity returns the port's identity in setAffinity, in the form of an address: a hash of its
// first frontend. IPv4 has only 32 bits: without the host's salt a tenant could choose an
// address and port with the identity of another tenant's. Two ports with the same identity by chance
// (one pair among 10,000 IPv4 ports in one of a hundred clusters) share entries: a client of both
// is balanced again whenever it changes between them.
func (p *portCompiler) identity() netip.Addr {
	at := p.port.Frontends[0].At
	var b [18]byte
	a := at.Addr().As16()
	binary.BigEndian.PutUint16(b[copy(b[:], a[:]):], at.Port())
	return p.numbered("port", b[:])
}

// tenant returns the number by which the port's namespace is counted, like identity. Two
// namespaces with the same number have one share together.
func (p *portCompiler) tenant() netip.Addr {
	return p.numbered("namespace", []byte(p.port.ID.Service.Namespace))
}

// numbered returns the salted hash of a value of a kind, in the form of an address of the port's family.
func (p *portCompiler) numbered(kind string, what []byte) netip.Addr {
	sum := p.host.Number(kind, what)
	a, _ := netip.AddrFromSlice(sum[:p.port.ID.Family.Bits()/8])
	return a
}
