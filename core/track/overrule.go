// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// above is what others have of an address, that external and load balancer IPs give way to:
//
//	                                                   external IP      load balancer IP
//	another Service's cluster IP, any port             gives way        gives way
//	another Service's node port, on this node's own    gives way        gives way
//	a load balancer IP of another namespace, any port  unless allowed
//	an endpoint of another namespace                   unless allowed
//	another Node's address                             unless allowed
type above struct {
	cluster, nodePort *service
	yields            bool // external IPs do, to the rest
	balancers         namespaces
	node              bool

	endpoints func() namespaces // that have an endpoint there: two at most
	found     *namespaces
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
	of := t.claims.vips[ip]
	if of == nil || !resolve.Yields(t.host, resolve.Address{Kind: model.KindExternalIP, At: at.at}) {
		return u
	}
	u.yields, u.balancers, u.node = true, of.balancers, t.claims.nodeAddrs[ip] > 0
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
	}
	if u.found == nil {
		all := u.endpoints()
		u.found = &all
	}
	if u.found.other(s.name.Namespace) {
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
		p.Detail = fmt.Sprintf("%s %s (%s) is a node port %d of Service %s", a.Kind, a.At, a.Proto, a.At.Port(), by.name)
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
