// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// claims decide which Service holds an address and port when several ask for it: by who may write
// the field (resolve.Authority), then the oldest, and among equals the first by name, so that the answer does
// not depend on the order of events, is the same on all nodes and survives a restart. When the holder gives it up,
// the next in line gets it. Addresses that policy denies a Service are not claimed: it must not keep
// them from others.
//
// External and load balancer IPs also give way to other claims on the address, whatever the port: see
// overruled. A Service that yields keeps its place; the first that need not yield holds the address.
//
// When a claim has another holder than before, that one and the new one are resolved again. The rest of those who ask
// for it are, too, while they are few: they name the holder in their problem. Of many nothing is kept but
// their places in the line.
type claims struct {
	contests  map[claim]*contest      // by all that have no single entry
	single    map[claim]*service      // cluster IPs and node ports that one Service asks for, as nearly all
	vips      map[netip.Addr]*vip     // external and load balancer IPs
	ports     map[claim]int           // how many contests of vips have the number of a node port
	open      []*contest              // whose holder must be found again
	changed   map[netip.Addr]struct{} // vips of which others have something more or less
	nodes     map[string][]netip.Addr // addresses of other nodes, by name
	nodeAddrs map[netip.Addr]int      // how many of them have an address
}

// few is how many Services may ask for an address so that all of them name its holder.
const few = 4

// contest is who asks for an address and port.
type contest struct {
	at      claim
	holder  *service   // nil where all give way to others
	line    []*service // by rank and age
	before  [2]uint32  // how many of line have a rank below 1, and below 2
	open    bool       // it is in claims.open
	many    bool       // more than few asked for it when the holder was last found
	noticed bool       // others have something more or less of the address since
	linked  bool       // it is one of those of its vip
	next    *contest   // of the same vip
	prev    *contest
}

// vip is an address that is asked for as an external or load balancer IP.
type vip struct {
	first     *contest
	balancers namespaces // that have it as a load balancer IP
	endpoints namespaces // that have an endpoint there, two at most; nil until asked for, and after a change
}

// namespaces counts what namespaces have.
type namespaces []struct {
	name string
	n    int
}

// add adds to what a namespace has, and reports whether it has some or none by that.
func (all *namespaces) add(name string, n int) (changed bool) {
	for i := range *all {
		if e := &(*all)[i]; e.name == name {
			if e.n += n; e.n == 0 {
				*all = slices.Delete(*all, i, i+1)
				return true
			}
			return false
		}
	}
	*all = append(*all, struct {
		name string
		n    int
	}{name, n})
	return true
}

// other reports whether another namespace has some.
func (all namespaces) other(name string) bool {
	return len(all) > 1 || len(all) == 1 && all[0].name != name
}

func newClaims() claims {
	return claims{
		contests: map[claim]*contest{}, single: map[claim]*service{}, vips: map[netip.Addr]*vip{}, ports: map[claim]int{},
		changed: map[netip.Addr]struct{}{}, nodes: map[string][]netip.Addr{}, nodeAddrs: map[netip.Addr]int{},
	}
}

// expect makes room for the first claims of some Services: most have a cluster IP and a port.
func (c *claims) expect(services int) {
	if len(c.single) == 0 {
		c.single = make(map[claim]*service, 2*services)
	}
}

func claimOf(a resolve.Address) claim { return claim{a.At, a.Proto} }

// whole is the claim of a cluster IP on all ports.
func whole(ip netip.Addr) claim { return claim{at: netip.AddrPortFrom(ip, 0)} }

func isVIP(a resolve.Address) bool {
	return a.Kind == model.KindExternalIP || a.Kind == model.KindLoadBalancer
}

// holder returns who has an address, if anyone.
func (c *claims) holder(at claim) *service {
	if s := c.single[at]; s != nil {
		return s
	}
	if found := c.contests[at]; found != nil {
		return found.holder
	}
	return nil
}

// line returns who asks for an address, by rank and age.
func (c *claims) line(at claim) []*service {
	if s := c.single[at]; s != nil {
		return []*service{s}
	}
	if found := c.contests[at]; found != nil {
		return found.line
	}
	return nil
}

// addressesOf lists what an object, or nil, asks for. Each cluster IP is also claimed as a whole,
// with port 0, and the health check node port like a node port: Tandem itself answers there, maybe later than an
// external IP of the node with that port is asked for.
func addressesOf(object *model.Service) (all []resolve.Address) {
	if object == nil {
		return nil
	}
	all = make([]resolve.Address, 0, 2*len(object.ClusterIPs)+1) // most ask for one more
	health := resolve.HealthPort(object)
	for _, ip := range object.ClusterIPs {
		all = append(all, resolve.Address{Kind: model.KindClusterIP, At: netip.AddrPortFrom(ip, 0)})
		if health != 0 {
			all = append(all, resolve.Address{Kind: model.KindNodePort, Proto: model.TCP, At: netip.AddrPortFrom(model.FamilyOf(ip).Unspecified(), health)})
		}
	}
	return resolve.AppendAddresses(all, object)
}

// permitted divides what an object, or nil, asks for by policy.
func permitted(host *model.Host, object *model.Service) (wanted, rejected []resolve.Address) {
	all := addressesOf(object)
	denied := func(a resolve.Address) bool { return !resolve.Permits(host, object, a) }
	if !slices.ContainsFunc(all, denied) {
		return all, nil
	}
	for _, a := range all {
		if denied(a) {
			rejected = append(rejected, a)
		} else {
			wanted = append(wanted, a)
		}
	}
	return wanted, rejected
}

// except removes others from all, in place.
func except(all, others []resolve.Address) []resolve.Address {
	if len(others) == 0 {
		return all
	}
	not := make(map[resolve.Address]struct{}, len(others))
	for _, a := range others {
		not[a] = struct{}{}
	}
	return slices.DeleteFunc(all, func(a resolve.Address) bool {
		_, is := not[a]
		return is
	})
}

// updateClaims brings a Service's claims in line with its object and the host.
func (t *Tracker) updateClaims(s *service) {
	wanted, rejected := permitted(t.host, s.Object)
	had := except(addressesOf(s.claimed), s.rejected)
	gone, more := had, wanted
	if s.claimed != nil && s.Object != nil && s.claimed.Created.Equal(s.Object.Created) { // its places in the lines are the same
		if gone, more = nil, nil; !slices.Equal(had, wanted) {
			gone, more = except(slices.Clone(had), wanted), except(slices.Clone(wanted), had)
		}
	}
	for _, a := range gone {
		t.withdraw(a, s)
	}
	s.claimed, s.rejected = s.Object, rejected
	for _, a := range more {
		t.claim(a, s)
	}
}

// affected has a Service that may come out differently by the host looked at, and the holders of what it has asked for
// found again.
func (t *Tracker) affected(s *service) {
	s.claimsStale = true
	t.mark(s)
	for _, a := range except(addressesOf(s.claimed), s.rejected) {
		if isVIP(a) {
			t.claims.reopen(t.claims.contests[claimOf(a)])
		}
	}
}

// claim puts a Service into the line for an address.
func (t *Tracker) claim(a resolve.Address, s *service) {
	c, at := &t.claims, claimOf(a)
	found, one := c.contests[at], c.single[at]
	switch {
	case found != nil:
	case one == nil && !isVIP(a):
		c.single[at] = s
		t.heldByAnother(at)
		return
	case one == s:
		return
	case one != nil:
		delete(c.single, at)
		found = &contest{at: at, holder: one, line: []*service{one}, before: [2]uint32{1, 1}}
		c.contests[at] = found
	default:
		found = &contest{at: at}
		c.contests[at] = found
	}
	if isVIP(a) && !found.linked {
		c.link(found)
	}
	rank := resolve.Authority(a.Kind)
	i, is := found.place(rank, s)
	if is {
		return
	}
	found.line = slices.Insert(found.line, i, s)
	for r := rank; r < len(found.before); r++ {
		found.before[r]++
	}
	if a.Kind == model.KindLoadBalancer && c.vips[a.At.Addr()].balancers.add(s.name.Namespace, 1) {
		c.change(a.At.Addr())
	}
	c.reopen(found)
}

// withdraw takes a Service out of the line for an address.
func (t *Tracker) withdraw(a resolve.Address, s *service) {
	c, at := &t.claims, claimOf(a)
	if c.single[at] == s {
		delete(c.single, at)
		t.heldByAnother(at)
		return
	}
	found := c.contests[at]
	if found == nil {
		return
	}
	rank := resolve.Authority(a.Kind)
	i, is := found.place(rank, s)
	if !is {
		return
	}
	found.line = slices.Delete(found.line, i, i+1)
	for r := rank; r < len(found.before); r++ {
		found.before[r]--
	}
	if a.Kind == model.KindLoadBalancer && c.vips[a.At.Addr()].balancers.add(s.name.Namespace, -1) {
		c.change(a.At.Addr())
	}
	c.reopen(found)
}

// link enters a contest among those for external and load balancer IPs.
func (c *claims) link(found *contest) {
	found.linked = true
	ip := found.at.at.Addr()
	of := c.vips[ip]
	if of == nil {
		of = &vip{}
		c.vips[ip] = of
	}
	if found.next = of.first; found.next != nil {
		found.next.prev = found
	}
	of.first = found
	c.ports[nodePortOf(found.at)]++
}

// remove removes a contest for what nobody asks for any more.
func (c *claims) remove(found *contest) {
	delete(c.contests, found.at)
	if !found.linked {
		return
	}
	ip := found.at.at.Addr()
	of := c.vips[ip]
	if found.next != nil {
		found.next.prev = found.prev
	}
	if found.prev != nil {
		found.prev.next = found.next
	} else if of.first = found.next; of.first == nil {
		delete(c.vips, ip)
	}
	port := nodePortOf(found.at)
	if c.ports[port]--; c.ports[port] == 0 {
		delete(c.ports, port)
	}
}

// nodePortOf is the node port with the number of an address.
func nodePortOf(at claim) claim {
	return claim{netip.AddrPortFrom(model.FamilyOf(at.at.Addr()).Unspecified(), at.at.Port()), at.proto}
}

// place returns the place of a Service among those that have the address by a field of its rank.
func (c *contest) place(rank int, s *service) (i int, is bool) {
	from, to := 0, len(c.line)
	if rank > 0 {
		from = int(c.before[rank-1])
	}
	if rank < len(c.before) {
		to = int(c.before[rank])
	}
	i, is = slices.BinarySearchFunc(c.line[from:to], s, older)
	return from + i, is
}

// rank returns by what kind of field the Service at a place of the line has the address.
func (c *contest) rank(i int) int {
	rank := 0
	for rank < len(c.before) && i >= int(c.before[rank]) {
		rank++
	}
	return rank
}

// older orders claimants: by creation where both are known, those of unknown
// age last, then by name.
func older(a, b *service) int {
	at, bt := a.created(), b.created()
	switch {
	case at.IsZero() != bt.IsZero():
		if at.IsZero() {
			return 1
		}
		return -1
	case !at.Equal(bt):
		return at.Compare(bt)
	}
	return a.name.Compare(b.name)
}

func (s *service) created() (at time.Time) {
	if s.claimed != nil {
		at = s.claimed.Created
	}
	return at
}

func (c *claims) reopen(found *contest) {
	if found != nil && !found.open {
		found.open = true
		c.open = append(c.open, found)
	}
}

// notice has the holders of an address found again, on all its ports, since others have
// something more or less of it.
func (c *claims) notice(ip netip.Addr) {
	of := c.vips[ip]
	if of == nil {
		return
	}
	for found := of.first; found != nil; found = found.next {
		found.noticed = true
		c.reopen(found)
	}
}

// heldByAnother notes that a cluster IP or node port has another holder than before: external and load balancer IPs
// give way to it.
func (t *Tracker) heldByAnother(at claim) {
	c := &t.claims
	switch {
	case len(c.vips) == 0:
	case at.at.Addr().IsUnspecified():
		if c.ports[at] == 0 {
			return
		}
		for _, own := range [][]netip.Addr{t.host.IPs, t.host.Guard.NodeIPs} {
			for _, ip := range own {
				if found := c.contests[claim{netip.AddrPortFrom(ip, at.at.Port()), at.proto}]; found != nil {
					found.noticed = true
					c.reopen(found)
				}
			}
		}
	case at.at.Port() == 0:
		c.change(at.at.Addr())
	}
}

// change notes that another use of an address has appeared or gone.
func (c *claims) change(ip netip.Addr) {
	if of := c.vips[ip]; of != nil {
		of.endpoints = nil
		c.changed[ip] = struct{}{}
	}
}

// decideClaims finds the holders of what is contested, and touches the Services that win or lose an
// address by it.
func (t *Tracker) decideClaims() {
	c := &t.claims
	for len(c.open)+len(c.changed) > 0 {
		for ip := range c.changed {
			c.notice(ip)
		}
		clear(c.changed)
		all := c.open
		c.open = nil
		for _, found := range all {
			t.decide(found)
		}
	}
}

func (t *Tracker) decide(found *contest) {
	before, noticed := found.holder, found.noticed
	found.open, found.noticed, found.holder = false, false, nil
	above := t.above(found.at)
	var looked int
	found.holder, looked = above.first(found)
	t.stats.Claimants += uint64(looked)
	if found.holder != before {
		for _, s := range []*service{before, found.holder} {
			if s != nil {
				t.markOne(s)
			}
		}
		t.heldByAnother(found.at)
	}
	was := found.many
	found.many = len(found.line) > few
	alone := len(found.line) == 1 && found.holder == found.line[0]                         // it has no problem
	if found.many != was || !found.many && (noticed && !alone || found.holder != before) { // the texts of their problems change
		for _, s := range found.line {
			t.entail(s)
		}
	}
	if len(found.line) == 0 {
		t.claims.remove(found)
	}
}

// above are the other uses of an address to which external and load balancer IPs give way:
//
//	                                                   external IP      load balancer IP
//	another Service's cluster IP, any port             gives way        gives way
//	another Service's node port, on this node's own    gives way        gives way
//	a load balancer IP of another namespace, any port  unless allowed
//	an endpoint of another namespace                   unless allowed, or this node's own address
//	another Node's address                             unless allowed
type above struct {
	cluster, nodePort *service
	yields            bool // external IPs do, to the rest
	balancers         namespaces
	node              bool

	endpoints func() namespaces // that have an endpoint there: two at most, found once; nil where they do not matter
}

func (t *Tracker) above(at claim) (u above) {
	ip := at.at.Addr()
	if ip.IsUnspecified() || at.at.Port() == 0 {
		return u // node ports and cluster IPs give way to nothing
	}
	u.cluster = t.claims.holder(whole(ip))
	if resolve.YieldsNodePort(t.host, ip) {
		u.nodePort = t.claims.holder(nodePortOf(at))
	}
	of, external := t.claims.vips[ip], resolve.Address{Kind: model.KindExternalIP, At: at.at}
	if of == nil || !resolve.Yields(t.host, external) {
		return u
	}
	u.yields, u.balancers, u.node = true, of.balancers, t.claims.nodeAddrs[ip] > 0
	if !resolve.YieldsToEndpoints(t.host, external) {
		return u
	}
	u.endpoints = func() (all namespaces) {
		if of.endpoints != nil {
			return of.endpoints
		}
		defer func() {
			if of.endpoints = all; all == nil {
				of.endpoints = namespaces{}
			}
		}()
		for slice := range t.slices.at(ip) {
			if ns := slice.Name.Namespace; len(all) == 0 || all.other(ns) {
				if all.add(ns, 1); len(all) > 1 {
					break
				}
			}
		}
		return all
	}
	return u
}

// first returns the first in the line for an address who gets it, if anyone. What overrules one overrules all of its
// namespace with the same rank, and another node's address all of the rest: a long line costs little to walk.
func (u *above) first(line *contest) (first *service, looked int) {
	namespace, refused := "", -1
	for i, s := range line.line {
		looked++
		rank := line.rank(i)
		if rank == refused && s.name.Namespace == namespace && s != u.cluster && s != u.nodePort {
			continue
		}
		why, _ := u.overrules(s, rank)
		switch why {
		case 0:
			return s, looked
		case model.WhyOtherNode:
			return nil, looked
		}
		namespace, refused = s.name.Namespace, rank
	}
	return nil, looked
}

// overrules states why a Service does not get an address that it has by a field of some rank (resolve.Authority),
// and the other Service, if that is one; the zero value where it may.
func (u *above) overrules(s *service, rank int) (why model.Reason, by *service) {
	switch {
	case rank == 0:
		return 0, nil
	case u.cluster != nil && u.cluster != s:
		return model.WhyFrontendTaken, u.cluster
	case u.nodePort != nil && u.nodePort != s:
		return model.WhyFrontendTaken, u.nodePort
	case rank < resolve.Authority(model.KindExternalIP) || !u.yields:
		return 0, nil
	case u.balancers.other(s.name.Namespace):
		return model.WhyBalancerAddress, nil
	case u.node:
		return model.WhyOtherNode, nil
	case u.endpoints != nil && u.endpoints().other(s.name.Namespace):
		return model.WhyEndpointAddress, nil
	}
	return 0, nil
}

// removeLost takes the frontends from a result that another Service holds, or that give way
// to what others have of the address. Beyond the problems that are reported they are only counted.
func (t *Tracker) removeLost(s *service, r *resolve.Result) {
	for _, p := range r.Ports {
		asked := len(p.Frontends)
		p.Frontends = slices.DeleteFunc(p.Frontends, func(f model.Frontend) bool {
			a := resolve.Address{Kind: f.Kind, Proto: p.ID.Proto, At: f.At}
			if t.claims.holder(claimOf(a)) == s {
				return false
			}
			r.Note(func() model.Problem { return t.loss(s, a) })
			return true
		})
		if len(p.Frontends) <= asked/2 { // what is lost takes no memory
			p.Frontends = slices.Clone(p.Frontends)
		}
	}
}

// loss describes why a Service has not got an address that it asks for. Where many ask for it that
// names no other Service: the problem would change with the holder, for all of them.
func (t *Tracker) loss(s *service, a resolve.Address) model.Problem {
	p := model.Problem{Object: "Service " + s.name.String(), Where: s.Object.Where, Why: model.WhyFrontendTaken}
	at := claimOf(a)
	if len(t.claims.line(at)) > few {
		p.Detail = fmt.Sprintf("%s %s (%s), which more than %d Services ask for", a.Kind, a.At, a.Proto, few)
		return p
	}
	above := t.above(at)
	why, by := above.overrules(s, resolve.Authority(a.Kind))
	switch {
	case why == model.WhyFrontendTaken && by == above.cluster:
		p.Detail = fmt.Sprintf("%s %s (%s) is a cluster IP of Service %s", a.Kind, a.At, a.Proto, by.name)
	case why == model.WhyFrontendTaken:
		p.Detail = fmt.Sprintf("%s %s (%s) has the number of node port %d of Service %s", a.Kind, a.At, a.Proto, a.At.Port(), by.name)
	case why != 0:
		p.Why, p.Detail, p.Fix = why, fmt.Sprintf("%s %s", a.Kind, a.At.Addr()), resolve.AllowFix(a.At.Addr())
	default:
		if holder := t.claims.holder(at); holder != nil {
			p.Detail = fmt.Sprintf("%s %s (%s) belongs to Service %s", a.Kind, a.At, a.Proto, holder.name)
		}
	}
	return p
}

// OtherNodes returns the other nodes that have an address which a Service asks for, by name, with these addresses
// alone: what others have decides nothing.
func (t *Tracker) OtherNodes() (all []*model.Node) {
	c := &t.claims
	if len(c.vips) == 0 {
		return nil
	}
	for name, ips := range c.nodes {
		asked := slices.DeleteFunc(slices.Clone(ips), func(ip netip.Addr) bool { return c.vips[ip] == nil })
		if len(asked) > 0 {
			all = append(all, &model.Node{Name: name, IPs: asked})
		}
	}
	slices.SortFunc(all, func(a, b *model.Node) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// SetOtherNode sets the addresses of another node, or takes them away: none. External IPs at one of
// them are left to that node, where the packets go. It reports whether that decides about a Service.
func (t *Tracker) SetOtherNode(name string, ips []netip.Addr) (matters bool) {
	c := &t.claims
	if slices.Equal(c.nodes[name], ips) {
		return false
	}
	for _, ip := range c.nodes[name] {
		if c.nodeAddrs[ip]--; c.nodeAddrs[ip] == 0 {
			delete(c.nodeAddrs, ip)
			c.change(ip)
		}
	}
	if c.nodes[name] = ips; len(ips) == 0 {
		delete(c.nodes, name)
	}
	for _, ip := range ips {
		if c.nodeAddrs[ip]++; c.nodeAddrs[ip] == 1 {
			c.change(ip)
		}
	}
	return len(c.changed) > 0
}
