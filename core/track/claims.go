package track

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// claims settle who owns an address when several Services ask for it: the
// oldest, and among equals the first by name, so that the answer does not depend
// on the order of events and survives a restart. When the holder goes the next
// in line takes over.
type claims struct {
	holder map[claim]*service
	rivals map[claim][]*service // all claimants, holder first; only where there are several
}

type claim struct {
	at    netip.AddrPort
	proto model.Proto
}

// reclaim brings a Service's claims in line with its object, after it had been
// old, and marks the Services that win or lose an address by it.
func (t *Tracker) reclaim(s *service, old *model.Service) {
	wanted := claimsOf(s.object)
	if old != nil {
		t.abandon(s, claimsOf(old), wanted)
	}
	// Claims that stay are made again: the Service's age may have changed.
	for _, c := range wanted {
		t.markAll(t.claims.stake(c, s))
	}
}

// abandon withdraws the claims that a Service had and does not make any more.
func (t *Tracker) abandon(s *service, had, wanted []claim) {
	keep := make(map[claim]struct{}, len(wanted))
	for _, c := range wanted {
		keep[c] = struct{}{}
	}
	for _, c := range had {
		if _, stays := keep[c]; !stays {
			t.markAll(t.claims.drop(c, s))
		}
	}
}

func (t *Tracker) markAll(touched []*service) {
	for _, s := range touched {
		t.mark(s)
	}
}

// claimsOf lists the addresses that an object, or nil, asks for.
func claimsOf(object *model.Service) (all []claim) {
	if object == nil {
		return nil
	}
	for _, a := range resolve.Addresses(object) {
		all = append(all, claim{a.At, a.Proto})
	}
	return all
}

// stake enters a claim and returns who else has to be resolved again for it. What
// it costs grows little with the number of rivals: one Service may ask for
// thousands of addresses that a thousand others ask for.
func (c *claims) stake(at claim, s *service) (touched []*service) {
	before := c.holder[at]
	if before == nil || before == s && c.rivals[at] == nil {
		c.holder[at] = s
		return nil
	}
	all := c.rivals[at]
	if all == nil {
		all = []*service{before}
	}
	all = without(all, s) // its age may have changed
	i, _ := slices.BinarySearchFunc(all, s, older)
	return c.settle(at, slices.Insert(all, i, s), before)
}

// drop withdraws a claim and returns who else has to be resolved again for it.
func (c *claims) drop(at claim, s *service) (touched []*service) {
	all := without(c.rivals[at], s)
	if len(all) == 0 {
		delete(c.holder, at)
		return nil
	}
	return c.settle(at, all, c.holder[at])
}

func without(all []*service, s *service) []*service {
	if i := slices.Index(all, s); i >= 0 {
		return slices.Delete(all, i, i+1)
	}
	return all
}

// settle notes the claimants, in order. When the holder is another one than
// before, all of them are touched: losers say whom they lost to.
func (c *claims) settle(at claim, all []*service, before *service) (touched []*service) {
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
