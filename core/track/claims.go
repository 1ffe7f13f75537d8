// SPDX-License-Identifier: Apache-2.0

package track

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// claims decide which Service owns an address when several ask for it: the
// oldest, and among equals the first by name, so that the answer does not depend
// on the order of events and survives a restart. When the holder goes the next
// in line gets it. Addresses that policy denies a Service are not claimed: it
// must not keep them from others.
type claims struct {
	holder map[claim]*service
	rivals map[claim][]*service // all claimants, holder first; only where there are several
	// below are the Services with external or load balancer IPs that lose them when
	// another Service holds a claim (resolve.OutrankedBy).
	below map[claim]serviceSet
}

// serviceSet is a set of Services, most of the time one.
type serviceSet struct {
	one  *service
	many map[*service]struct{} // nil for one
}

// claimsOf lists the addresses that an object, or nil, asks for. Each cluster IP
// is also claimed as a whole, with port 0.
func claimsOf(object *model.Service) (all []claim) {
	if object == nil {
		return nil
	}
	for _, ip := range object.ClusterIPs {
		all = append(all, claim{at: netip.AddrPortFrom(ip, 0)})
	}
	for _, a := range resolve.Addresses(object) {
		all = append(all, claim{a.At, a.Proto})
	}
	return all
}

// permitted divides what an object, or nil, asks for by policy.
func permitted(host *model.Host, object *model.Service) (wanted, rejected []claim) {
	if object == nil {
		return nil, nil
	}
	addresses := resolve.Addresses(object)
	wanted = make([]claim, 0, len(object.ClusterIPs)+len(addresses))
	ask := func(a resolve.Address) {
		wanted = append(wanted, claim{a.At, a.Proto})
		if !resolve.Permits(host, object, a) {
			rejected = append(rejected, claim{a.At, a.Proto})
		}
	}
	for _, ip := range object.ClusterIPs { // as a whole, whatever the ports
		ask(resolve.Address{Kind: model.KindClusterIP, At: netip.AddrPortFrom(ip, 0)})
	}
	for _, a := range addresses {
		ask(a)
	}
	return except(wanted, rejected), rejected
}

// except returns the claims of all that are not in others.
func except(all, others []claim) []claim {
	if len(others) == 0 {
		return all
	}
	not := make(map[claim]struct{}, len(others))
	for _, c := range others {
		not[c] = struct{}{}
	}
	return slices.DeleteFunc(all, func(c claim) bool {
		_, is := not[c]
		return is
	})
}

// expect makes room for the first claims of some Services: most have a cluster IP and a port.
func (c *claims) expect(services int) {
	if len(c.holder) == 0 {
		c.holder = make(map[claim]*service, 2*services)
	}
}

// add enters a claim, and returns its holder before and the other Services that have to be resolved
// again. What it costs grows little with the number of rivals: one Service may ask for
// thousands of addresses that a thousand others ask for.
func (c *claims) add(at claim, s *service) (before *service, touched []*service) {
	before = c.holder[at]
	if before == nil || before == s && c.rivals[at] == nil {
		c.holder[at] = s
		return before, nil
	}
	all := c.rivals[at]
	if all == nil {
		all = []*service{before}
	}
	all = without(all, s) // its age may have changed
	i, _ := slices.BinarySearchFunc(all, s, func(a, b *service) int { return compareClaims(at, a, b) })
	return before, c.assign(at, slices.Insert(all, i, s), before)
}

// remove withdraws a claim, and returns what add does.
func (c *claims) remove(at claim, s *service) (before *service, touched []*service) {
	before = c.holder[at]
	all := without(c.rivals[at], s)
	if len(all) == 0 {
		delete(c.holder, at)
		return before, nil
	}
	return before, c.assign(at, all, before)
}

func without(all []*service, s *service) []*service {
	if i := slices.Index(all, s); i >= 0 {
		return slices.Delete(all, i, i+1)
	}
	return all
}

// assign notes the claimants, in order. When the holder is another one than
// before, all of them are touched: losers report the new holder.
func (c *claims) assign(at claim, all []*service, before *service) (touched []*service) {
	c.holder[at] = all[0]
	if len(all) == 1 {
		delete(c.rivals, at)
	} else {
		c.rivals[at] = all
	}
	if all[0] == before {
		return nil
	}
	return all
}

// compareClaims orders claimants: those who have it as a cluster IP before all others, then
// by age. It compares the objects that the claims were made for, so that the order of
// rivals stays as it is until they make their claims again.
func compareClaims(at claim, a, b *service) int {
	if is := a.hasClusterIP(at.at.Addr()); is != b.hasClusterIP(at.at.Addr()) {
		if is {
			return -1
		}
		return 1
	}
	return older(a, b)
}

func (s *service) hasClusterIP(ip netip.Addr) bool {
	return s.claimed != nil && slices.Contains(s.claimed.ClusterIPs, ip)
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

// indexBelow enters or removes a Service where its external and load balancer IPs give
// way to others.
func (c *claims) indexBelow(object *model.Service, s *service, in bool) {
	if object == nil || len(object.ExternalIPs)+len(object.LoadBalancerIPs) == 0 {
		return
	}
	for _, a := range resolve.Addresses(object) {
		if a.Kind != model.KindExternalIP && a.Kind != model.KindLoadBalancer {
			continue
		}
		port := resolve.NodePortOf(a)
		for _, above := range []claim{{at: netip.AddrPortFrom(a.At.Addr(), 0)}, {port.At, port.Proto}} {
			set := c.below[above]
			if in {
				set.add(s)
			} else {
				set.remove(s)
			}
			if set.empty() {
				delete(c.below, above)
			} else {
				c.below[above] = set
			}
		}
	}
}

func (c *serviceSet) empty() bool { return c.one == nil && len(c.many) == 0 }

func (c *serviceSet) add(s *service) {
	switch {
	case c.one == s:
	case c.many != nil:
		c.many[s] = struct{}{}
	case c.one == nil:
		c.one = s
	default:
		c.many, c.one = map[*service]struct{}{c.one: {}, s: {}}, nil
	}
}

func (c *serviceSet) remove(s *service) {
	if c.one == s {
		c.one = nil
	}
	delete(c.many, s)
}

func (c serviceSet) all() iter.Seq[*service] {
	if c.one != nil {
		return func(yield func(*service) bool) { yield(c.one) }
	}
	return maps.Keys(c.many)
}

func (s *service) created() (at time.Time) {
	if s.claimed != nil {
		at = s.claimed.Created
	}
	return at
}
