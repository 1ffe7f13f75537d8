package watch

import (
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tandem-proxy/tandem/core/model"
)

// ServiceCIDR converts a ServiceCIDR. One that is being deleted counts until it
// is gone: that takes until no Service has an address of it.
func ServiceCIDR(c *networkingv1.ServiceCIDR) (*model.ServiceCIDR, []model.Problem) {
	if c == nil {
		return nil, nil
	}
	f := &faults{kind: "ServiceCIDR", meta: &c.ObjectMeta}
	return &model.ServiceCIDR{Name: c.Name, CIDRs: prefixes(f, "spec.cidrs", c.Spec.CIDRs)}, f.problems()
}
