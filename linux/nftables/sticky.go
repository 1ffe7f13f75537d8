package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// A port with ClientIP affinity has chains of its own:
//
//	vips ─▶ [snat-|nosnat-]sticky-… ─▶ endpoint-…: remember the client, DNAT
//	         a client that one of the
//	         endpoints remembers goes there,
//	         all others anywhere
//
// What an endpoint remembers (the set clients-…) is shared by all fronts of the
// port, as in kube-proxy: a client is bound to an endpoint for the port, not for
// one of its addresses.

// maxSticky is how many endpoints a pool may have for affinity to be kept. Each
// of them is a set, a chain and two rules of the chain that chooses. A client's
// first packet walks those rules one by one, and whenever an endpoint comes or
// goes all of them are written again, in one transaction: 2,000 rules are a
// burden, and much more would stop all other changes meanwhile.
const maxSticky = 1000

// stickyChain emits the chains for a pool and returns the name of the one to go
// to for a class.
func (p *portCompiler) stickyChain(pool *model.Pool, c class) string {
	f := p.port.ID.Family
	name := "sticky-" + p.ownName("")
	// The order of pools may differ from one version of a port to the next;
	// their content then differs, and nothing worse happens.
	if n := slices.Index(p.port.Pools(), pool); n > 0 {
		name += "-pool" + strconv.Itoa(n+1)
	}
	if !slices.Contains(p.sticky, pool) {
		p.sticky = append(p.sticky, pool)
		p.emit(chainKey(f, name), Value{Body: &Body{Chain: newChain(f, Hook{}, p.stickyRules(pool))}})
	}
	if c == asIs {
		return name
	}
	entry := strings.TrimPrefix(classSuffix[c], "-") + "-" + name
	rules := []Rule{rule(append(c.statements(p.bit), Goto{name})...)}
	p.once(chainKey(f, entry), Value{Body: &Body{Chain: newChain(f, Hook{}, rules)}})
	return entry
}

// stickyRules are the rules for a pool: first whoever is remembered, then a
// choice by chance, one in n, then one in n-1, down to the last. Slots have no
// meaning here; the order is that of addresses, so that it survives a restart.
func (p *portCompiler) stickyRules(pool *model.Pool) []Rule {
	addrs := make([]netip.AddrPort, len(pool.Endpoints))
	for i, e := range pool.Endpoints {
		addrs[i] = e.Addr
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	var known, chance []Rule
	for i, a := range addrs {
		chain, clients := p.stickyEndpoint(a)
		known = append(known, rule(KnownClient{clients}, Goto{chain}))
		if left := len(addrs) - i; left > 1 {
			chance = append(chance, rule(OneOf{uint32(left)}, Goto{chain}))
		} else {
			chance = append(chance, rule(Goto{chain}))
		}
	}
	return append(known, chance...)
}

// stickyEndpoint emits the chain and the set of one endpoint. Remembering is a
// rule of its own: when the set is full it fails, and the client must still
// reach the endpoint.
func (p *portCompiler) stickyEndpoint(a netip.AddrPort) (chain, clients string) {
	f := p.port.ID.Family
	own := p.ownName("__" + strings.ReplaceAll(a.Addr().String(), ":", ".") + "/" + strconv.Itoa(int(a.Port())))
	chain, clients = "endpoint-"+own, "clients-"+own
	p.once(setKey(f, clients), Value{Body: &Body{Set: shapeOf(f, clientSet)}})
	p.once(chainKey(f, chain), Value{Body: &Body{Chain: newChain(f, Hook{}, []Rule{
		rule(Remember{clients, p.port.Sticky}),
		{Statements: []Statement{ProtocolIs{p.port.ID.Proto}, SendTo{a}}, Comment: p.comment},
	})}})
	return chain, clients
}

// ownName makes a name for an object of this port that nothing else has: a hash
// to tell them apart, and the names for people as far as nft can spell them.
func (p *portCompiler) ownName(what string) string {
	full := p.port.ID.String() + "/" + p.port.ID.Proto.String() + what
	sum := sha256.Sum256([]byte(full))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:12])
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.', r == '/', r == '_':
			return r
		case r == ':':
			return '/'
		}
		return '_'
	}, full)
	// 255 bytes are allowed, less the prefix and suffix that the caller adds.
	return hash + "-" + readable[:min(len(readable), 200)]
}
