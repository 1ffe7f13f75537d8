// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tandem-proxy/tandem/core/model"
)

// taintLeaving is put on nodes that the cluster autoscaler is about to delete
// (KEP-3458): load balancers must stop using them.
const taintLeaving = "ToBeDeletedByClusterAutoscaler"

// Node converts a Node.
func Node(n *corev1.Node) (*model.Node, []model.Problem) {
	if n == nil {
		return nil, nil
	}
	f := &faults{kind: "Node", meta: &n.ObjectMeta}
	cidrs, path := n.Spec.PodCIDRs, "spec.podCIDRs"
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs, path = []string{n.Spec.PodCIDR}, "spec.podCIDR"
	}
	return &model.Node{
		Name:     intern(n.Name),
		Zone:     intern(n.Labels[corev1.LabelTopologyZone]),
		IPs:      nodeIPs(f, n.Status.Addresses),
		PodCIDRs: prefixes(f, path, cidrs),
		Leaving:  leaving(n),
	}, f.problems()
}

// nodeIPs returns the internal addresses and then the external ones, each once.
// Link-local addresses are fine for a node, unlike for a Service.
func nodeIPs(f *faults, list []corev1.NodeAddress) []netip.Addr {
	var ips model.Unique[netip.Addr]
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, a := range list {
			if a.Type != kind {
				continue
			}
			addr, remark := parseAddr(a.Address)
			if remark == "" && (addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast()) {
				remark = "not a node address"
			}
			if remark != "" {
				f.bad(model.WhyBadAddress, at("status.addresses", i, "address"), a.Address, remark)
				continue
			}
			f.zeros("status.addresses", i, "address", a.Address)
			ips.Add(addr)
		}
	}
	return ips.List()
}

func leaving(n *corev1.Node) bool {
	if n.DeletionTimestamp != nil {
		return true
	}
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Key == taintLeaving {
			return true
		}
	}
	return false
}

// ServiceCIDR converts a ServiceCIDR. One that is being deleted is used until it is
// gone, which takes until no Service has an address of it.
func ServiceCIDR(c *networkingv1.ServiceCIDR) (*model.ServiceCIDR, []model.Problem) {
	if c == nil {
		return nil, nil
	}
	f := &faults{kind: "ServiceCIDR", meta: &c.ObjectMeta}
	return &model.ServiceCIDR{Name: c.Name, CIDRs: prefixes(f, "spec.cidrs", c.Spec.CIDRs)}, f.problems()
}
