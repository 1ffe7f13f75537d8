package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// ranges are the ranges of cluster IPs, and what there is to say of those that
// are left out.
type ranges struct {
	alone    []netip.Prefix
	problems []model.Problem
}

// rangesFor finds the ranges in which there can be nothing but cluster IPs. The
// API server lets a ServiceCIDR (KEP-1880) overlap with the networks of nodes and
// pods, and there are clouds whose defaults do: to drop what no Service has would
// cut those off. So a range that has an address of this node or its pods in it is
// left out, and so are all while the node's address is not known.
func rangesFor(c *config.Config, node *model.Node, ips []netip.Addr, cidrs []*model.ServiceCIDR) (r ranges) {
	for _, cidr := range cidrs {
		for _, p := range cidr.CIDRs {
			other := tenant(p, ips, slices.Concat(c.ClusterCIDRs, node.PodCIDRs))
			if other == "" {
				r.alone = append(r.alone, p)
				continue
			}
			r.problems = append(r.problems, model.Problem{
				Object: "ServiceCIDR " + cidr.Name, Where: cidr.Where, Why: model.WhySharedRange, Detail: fmt.Sprintf("%s: %s", p, other),
			})
		}
	}
	r.alone = model.Canonical(r.alone)
	return r
}

// tenant names who else is in a range; empty for nobody.
func tenant(p netip.Prefix, ips []netip.Addr, pods []netip.Prefix) string {
	if i := slices.IndexFunc(ips, p.Contains); i >= 0 {
		return fmt.Sprintf("%s in it is this node's own address", ips[i])
	}
	if i := slices.IndexFunc(pods, p.Overlaps); i >= 0 {
		return fmt.Sprintf("pods have addresses of %s", pods[i])
	}
	family := model.FamilyOf(p.Addr())
	if !slices.ContainsFunc(ips, func(a netip.Addr) bool { return model.FamilyOf(a) == family }) {
		return fmt.Sprintf("no %s address of this node is known, which might be in it", family)
	}
	return ""
}
