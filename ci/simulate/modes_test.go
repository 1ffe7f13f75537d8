// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/iptables"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/nftables"
	"github.com/tandem-proxy/tandem/linux/userspace"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// modes are all there are, in the order of the report.
var modes = [...]config.Mode{"nftables", "iptables", "ipvs", "userspace", hns.Name}

// newPlane returns an empty data plane of a mode. Transactions are small, so that
// there is something between them.
func newPlane(name config.Mode, rng *rand.Rand, dir string) plane {
	atomic := dataplane.Limits{Atomic: true, Batch: 4 + rng.IntN(40)}
	switch name {
	case "nftables":
		return newTable(name, nftables.NewCompiler(nftables.Options{}), atomic, func(o map[nft.Key]nft.Value, h *model.Host) decide {
			return nft.NewSim(o, h).Decide
		}, nftInUse, rng)
	case "iptables":
		return newTable(name, iptables.NewCompiler(iptables.Options{}), atomic, func(o map[iptables.Key]iptables.Value, h *model.Host) decide {
			return iptables.NewSim(o, h).Decide
		}, iptablesInUse, rng)
	case "ipvs":
		return newTable(name, ipvs.NewCompiler(ipvs.Options{}), dataplane.Limits{}, func(o map[ipvs.Key]ipvs.Value, h *model.Host) decide {
			return ipvs.NewSim(ipvs.Options{}, o, h).Decide
		}, lastDestination, rng)
	case "userspace":
		t := newTable(name, userspace.NewCompiler(1<<14), dataplane.Limits{Batch: 4 + rng.IntN(40)}, func(o map[userspace.Key]userspace.Value, h *model.Host) decide {
			return userspace.NewSim(o, h).Decide
		}, relayInUse, rng)
		t.fate = func(k userspace.Key) (family int, shared bool) { return int(k.Family), userspace.InTable(k) }
		return t
	}
	return newWindows(rng, dir)
}

// lastDestination reports whether a destination is the last one of a virtual server that lacks another.
func lastDestination(objects map[ipvs.Key]ipvs.Value, failed []ipvs.Key, key ipvs.Key) bool {
	return slices.ContainsFunc(failed, func(k ipvs.Key) bool { return ipvs.SameServer(k, key) }) && ipvs.Last(objects, key)
}

// relayInUse reports whether a rule leads to a relay: the driver does not delete it then.
func relayInUse(objects map[userspace.Key]userspace.Value, _ []userspace.Key, key userspace.Key) bool {
	for k, v := range objects {
		if userspace.UsesRelay(k, v, key) {
			return true
		}
	}
	return false
}

// nftInUse reports whether an element or a rule leads to a chain: nf_tables refuses to
// delete it (EBUSY, nf_tables_delchain).
func nftInUse(objects map[nft.Key]nft.Value, _ []nft.Key, key nft.Key) bool {
	if key.Kind != nft.KindChain {
		return false
	}
	for k, v := range objects {
		if k.Family == key.Family && v.Body != nil && (v.Body.Goto == key.Name() || v.Body.Chain != nil && slices.ContainsFunc(v.Body.Chain.Rules, leadsTo(key.Name()))) {
			return true
		}
	}
	return false
}

func leadsTo(chain string) func(nft.Rule) bool {
	return func(r nft.Rule) bool {
		return slices.ContainsFunc(r.Statements, func(s nft.Statement) bool { return s == nft.Goto{Chain: chain} || s == nft.Jump{Chain: chain} })
	}
}

// iptablesInUse reports whether a rule leads to a chain: iptables refuses to delete it.
func iptablesInUse(objects map[iptables.Key]iptables.Value, _ []iptables.Key, key iptables.Key) bool {
	if key.Position != (iptables.Position{}) {
		return false
	}
	for k, v := range objects {
		if k.Family != key.Family || k.Table != key.Table || !strings.Contains(v.String(), key.Chain) {
			continue
		}
		for r := range v.All() {
			if r.Chain() == key.Chain {
				return true
			}
		}
	}
	return false
}
