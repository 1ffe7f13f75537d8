// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"math/rand/v2"

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
		}, rng)
	case "iptables":
		return newTable(name, iptables.NewCompiler(iptables.Options{}), atomic, func(o map[iptables.Key]iptables.Value, h *model.Host) decide {
			return iptables.NewSim(o, h).Decide
		}, rng)
	case "ipvs":
		return newTable(name, ipvs.NewCompiler(ipvs.Options{}), dataplane.Limits{}, func(o map[ipvs.Key]ipvs.Value, h *model.Host) decide {
			return ipvs.NewSim(ipvs.Options{}, o, h).Decide
		}, rng)
	case "userspace":
		return newTable(name, userspace.NewCompiler(1<<14), dataplane.Limits{Batch: 4 + rng.IntN(40)}, func(o map[userspace.Key]userspace.Value, h *model.Host) decide {
			return userspace.NewSim(o, h).Decide
		}, rng)
	}
	return newWindows(rng, dir)
}
