// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

type actions = [model.Origins]model.Action

// internal is what a cluster IP does (internalTrafficPolicy, KEP-2086).
//
// Clients other than pods of this node are SNATed, since the endpoint's reply must
// come back through this node. When pods cannot be recognised no client is: SNAT
// for all would hide every client, and a cluster that works without a detector
// routes Service answers by other means.
func internal(host *model.Host, svc *model.Service, family model.Family, p pools) (on actions) {
	act := balance(svc.Internal, p)
	known := host.Pods.Known(family)
	for origin := range on {
		a := act
		a.SNAT = act.Verdict == model.Balance && (host.MasqueradeAll || known && model.Origin(origin) != model.FromPod)
		on[origin] = a
	}
	return on
}

// external is what external IPs, load balancer IPs and node ports do
// (externalTrafficPolicy).
//
// Under Cluster everything is SNATed, because the answer of an endpoint on
// another node must come back through here. Under Local the client's address is
// kept, and only this node's endpoints serve clients from outside. This node's
// own pods and processes are not outside: they may use the whole cluster's
// endpoints, as they would through the cluster IP.
func external(host *model.Host, svc *model.Service, family model.Family, p pools) (on actions) {
	if svc.External == model.Cluster {
		act := balance(model.Cluster, p)
		act.SNAT = act.Verdict == model.Balance
		return actions{act, act, act}
	}
	outside, short := balance(model.Local, p), balance(model.Cluster, p)
	if short.Verdict == model.Balance {
		short.Why = model.WhyShortCircuit
	}
	on[model.FromOutside] = outside
	on[model.FromHost] = short
	on[model.FromHost].SNAT = short.Verdict == model.Balance
	on[model.FromPod] = short
	if !host.Pods.Known(family) {
		on[model.FromPod] = outside
	}
	return on
}

// balance is the Action over the pool of a policy, or its replacement when the pool is
// empty: reject when there is no endpoint anywhere, so that clients fail at once;
// drop when other nodes could serve, so that a load balancer or a retry
// finds them.
func balance(policy model.TrafficPolicy, p pools) model.Action {
	pool, why := p.cluster, p.whyCluster
	if policy == model.Local {
		pool, why = p.local, p.whyLocal
	}
	switch {
	case pool != nil:
		return model.Action{Verdict: model.Balance, Pool: pool, Policy: policy, Why: why}
	case p.cluster == nil:
		return model.Action{Verdict: model.Reject, Why: model.WhyNoEndpoints}
	}
	return model.Action{Verdict: model.Drop, Why: model.WhyNoLocalEndpoints}
}

func frontends(host *model.Host, svc *model.Service, addresses []Address, p pools) []model.Frontend {
	fs := make([]model.Frontend, len(addresses))
	for i, a := range addresses {
		family := model.FamilyOf(a.At.Addr())
		f := model.Frontend{Kind: a.Kind, At: a.At}
		if a.Kind == model.KindClusterIP {
			f.On = internal(host, svc, family, p)
		} else {
			f.On = external(host, svc, family, p)
		}
		if restricted(svc, a) {
			f.Restricted, f.Allow = true, allowed(host, svc.SourceRanges, a.At.Addr())
		}
		fs[i] = f
	}
	return fs
}

// allowed returns the source ranges of a load balancer address, canonical. When
// they let this node in, they also let in the address itself: a packet that the
// node sends to its own load balancer carries that as its source where the
// address is bound locally.
func allowed(host *model.Host, ranges []netip.Prefix, vip netip.Addr) []netip.Prefix {
	family := model.FamilyOf(vip)
	var mine []netip.Prefix
	for _, r := range ranges {
		if model.FamilyOf(r.Addr()) == family {
			mine = append(mine, r.Masked())
		}
	}
	if primary, ok := host.Primary(family); ok && slices.ContainsFunc(mine, func(r netip.Prefix) bool { return r.Contains(primary) }) {
		mine = append(mine, netip.PrefixFrom(vip, vip.BitLen()))
	}
	return model.Canonical(mine)
}
