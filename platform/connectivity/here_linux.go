// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/platform"
)

// openHere makes backends and clients around this node, and has the tandem that runs
// here serve them by a manifest in its folder.
func (r *Rig) openHere(ctx context.Context, o Options) error {
	doc, err := platform.Ask(ctx, question.ListServices(), question.ServicesRequest{})
	if err != nil {
		return err
	}
	r.site.NodeName = doc.Node
	used := usedBy(doc)
	if r.site.FirstPort, err = used.freePorts(); err != nil {
		return err
	}
	r.site.Families = nil
	var problems []error
	for _, f := range o.Families {
		main, err := mainAddress(ctx, f)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if r.site.Ranges[f], err = used.freeRange(f); err != nil {
			return err
		}
		if pods := o.Pods[f]; pods.IsValid() {
			if err := used.free(pods); err != nil {
				return err
			}
			r.site.PodRanges[f] = pods
		}
		r.site.Families, r.site.Node = append(r.site.Families, f), append(r.site.Node, main)
	}
	if len(r.site.Families) == 0 {
		return errors.Join(problems...)
	}
	if err := r.nodeAddresses(); err != nil {
		return err
	}
	plan := r.site.plan()
	plan.Here, plan.Prefix = true, "tandem-t-"
	if err := r.connect(ctx, plan); err != nil {
		return err
	}
	return r.write(o.Folder, false)
}

// nodeAddresses adds all others of the node's addresses to the main ones.
func (r *Rig) nodeAddresses() error {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("addresses of this node: %w", err)
	}
	for _, x := range all {
		p, err := netip.ParsePrefix(x.String())
		a := p.Addr()
		if err == nil && a.IsGlobalUnicast() && slices.Contains(r.site.Families, model.FamilyOf(a)) && !slices.Contains(r.site.Node, a) {
			r.site.Node = append(r.site.Node, a)
		}
	}
	return nil
}

// used is what Services have already.
type used struct {
	addresses []netip.Addr
	ports     map[uint16]bool
}

func usedBy(doc question.Services) (u used) {
	u.ports = map[uint16]bool{}
	for _, s := range doc.Services {
		for _, f := range s.Frontends {
			if port, node := strings.CutPrefix(f.Address, "*:"); node {
				n, _ := strconv.ParseUint(port, 10, 16)
				u.ports[uint16(n)] = true
			} else if at, err := netip.ParseAddrPort(f.Address); err == nil {
				u.addresses = append(u.addresses, at.Addr())
			}
		}
	}
	return u
}

// freePorts is the first of nodePorts of the usual range that no Service has. Health
// ports are not known beforehand: tandem reports one that is taken.
func (u used) freePorts() (uint16, error) {
	for first := uint16(32768 - nodePorts); first >= 30000; first -= nodePorts {
		free := true
		for i := range uint16(nodePorts) {
			free = free && !u.ports[first+i]
		}
		if free {
			return first, nil
		}
	}
	return 0, fmt.Errorf("no %d node ports in sequence are free", nodePorts)
}

// rangesTried is how many ranges are tried.
const rangesTried = 64

// freeRange is a range that nothing on this node uses: of the addresses for benchmarks
// (RFC 2544), or of a random local prefix (RFC 4193).
func (u used) freeRange(f model.Family) (p netip.Prefix, err error) {
	for i := range byte(rangesTried) {
		p = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18 + i/32, i % 32 * 4, 0}), 22)
		if f == model.IPv6 {
			p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x8e, 0x74, 0x61, 0x6e, 0x64, 7: i}), 64)
		}
		if err = u.free(p); err == nil {
			return p, nil
		}
	}
	return p, err
}

// free returns an error when a Service has an address of a range, or this node a route
// into it.
func (u used) free(p netip.Prefix) error {
	if i := slices.IndexFunc(u.addresses, p.Contains); i >= 0 {
		return fmt.Errorf("range %s: a Service has %s", p, u.addresses[i])
	}
	family := map[bool]int{true: netlink.FAMILY_V4, false: netlink.FAMILY_V6}[p.Addr().Is4()]
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE) // of all tables
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		if route.Dst == nil {
			continue
		}
		dst, err := netip.ParsePrefix(route.Dst.String())
		if err == nil && dst.Bits() >= p.Bits() && dst.Overlaps(p) {
			return fmt.Errorf("range %s: this node has a route to %s", p, dst)
		}
	}
	return nil
}
