package ipvs

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/ipset"
)

// alias marks the device as ours: one of the same name without it is
// kube-proxy's.
const alias = "kept by Tandem"

// link makes the device, or takes over kube-proxy's, or deletes it. It stays
// down, as kube-proxy's does: nothing is ever sent through it.
func (k *kernel) link(verb ledger.Verb) error {
	if verb == ledger.Delete {
		link, err := k.links.LinkByName(Link)
		if err == nil {
			err = k.links.LinkDel(link)
		}
		return but(wrap("link "+Link, err), unix.ENODEV)
	}
	err := k.links.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: Link}})
	if but(err, unix.EEXIST) != nil {
		return wrap("link "+Link, err)
	}
	link, err := k.links.LinkByName(Link)
	if err == nil {
		err = k.links.LinkSetAlias(link, alias)
	}
	return wrap("link "+Link, err)
}

// but takes errors as success that say that there is nothing to do.
func but(err error, fine ...error) error {
	var gone netlink.LinkNotFoundError
	for _, f := range fine {
		if errors.Is(err, f) || f == unix.ENODEV && errors.As(err, &gone) {
			return nil
		}
	}
	return err
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// address binds a cluster IP, or lets it go. The kernel must never choose it as
// the source for other machines, as masquerading does: so its scope is the host,
// and in IPv6, where scopes do not say that, it is deprecated.
func (k *kernel) address(verb ledger.Verb, a netip.Addr) error {
	link, err := k.links.LinkByName(Link)
	if err != nil {
		if verb == ledger.Delete {
			return but(err, unix.ENODEV)
		}
		return wrap("address "+a.String(), err)
	}
	addr := &netlink.Addr{IPNet: whole(a), Scope: unix.RT_SCOPE_HOST}
	if a.Is6() {
		addr.Flags, addr.Scope = unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE, 0
		addr.ValidLft, addr.PreferedLft = math.MaxUint32, 0
	}
	if verb == ledger.Delete {
		return but(wrap("address "+a.String(), k.links.AddrDel(link, addr)), unix.EADDRNOTAVAIL)
	}
	return but(wrap("address "+a.String(), k.links.AddrAdd(link, addr)), unix.EEXIST)
}

func whole(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// rule makes or deletes the rule that packets with a mark look into our table
// first.
func (k *kernel) rule(verb ledger.Verb, f model.Family, mark uint32) error {
	rule := routeRule(f, mark)
	if verb == ledger.Delete {
		return but(wrap("routing rule", k.links.RuleDel(rule)), unix.ENOENT)
	}
	return but(wrap("routing rule", k.links.RuleAdd(rule)), unix.EEXIST)
}

// route makes or deletes a route that delivers packets for an address here.
func (k *kernel) route(verb ledger.Verb, a netip.Addr) error {
	const loopback = 1 // the index of lo in every network namespace
	local := &netlink.Route{
		Family: netlinkFamily(model.FamilyOf(a)), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: whole(a), LinkIndex: loopback, Table: RouteTable,
	}
	if verb == ledger.Delete {
		return but(wrap("local route to "+a.String(), k.links.RouteDel(local)), unix.ESRCH, unix.ENOENT)
	}
	return but(wrap("local route to "+a.String(), k.links.RouteAdd(local)), unix.EEXIST)
}

func routeRule(f model.Family, mark uint32) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = netlinkFamily(f), RoutePriority, RouteTable
	rule.Mark, rule.Mask = mark, &mark
	return rule
}

func netlinkFamily(f model.Family) int {
	return [...]int{netlink.FAMILY_V4, netlink.FAMILY_V6}[f]
}

// set makes a set. One of the name that is there already is not like ours, as
// Observe has not told of it: it is replaced in one step, so that rules that use
// it always find one.
func (k *kernel) set(verb ledger.Verb, s ipset.Set) error {
	if verb == ledger.Delete {
		return but(k.sets.Destroy(s.Name), ipset.ErrNotFound)
	}
	err := k.sets.Create(s)
	if !errors.Is(err, ipset.ErrExists) {
		return err
	}
	fresh := s
	fresh.Name = "TANDEM-NEW"
	// One may be left where this was cut short: the set that was replaced then.
	if err := but(k.sets.Destroy(fresh.Name), ipset.ErrNotFound); err != nil {
		return err
	}
	if err := k.sets.Create(fresh); err != nil {
		return err
	}
	return errors.Join(k.sets.Swap(fresh.Name, s.Name), k.sets.Destroy(fresh.Name))
}
