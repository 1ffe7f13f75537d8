// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/relay/direct"
)

// Mode is the userspace mode with addresses assigned to an adapter.
func Mode() dataplane.Mode {
	return onWindows(dataplane.Mode{Name: relay.Mode, System: "windows", Ephemeral: true, Plan: plan})
}

func plan(_ *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(direct.NewCompiler(direct.Adapter{}), host, ports, direct.Table)
}

// placement returns the placement of Service addresses on a kind of adapter.
func placement(loopback bool) direct.Placement {
	if loopback {
		return nodeOnly{}
	}
	return direct.Adapter{}
}

// nodeOnly is the placement on the loopback adapter, which only this node reaches.
type nodeOnly struct{ direct.Adapter }

var _ direct.Placement = nodeOnly{}

func (nodeOnly) Note() string {
	return "node ports apart, only processes of this node are served: it has no adapter for containers, so the addresses are assigned to its loopback adapter"
}

// tryAddress reports whether addresses can be assigned: it assigns one for benchmarks
// (RFC 2544), and removes it. If Add fails since the address exists (taken) and it is marked, another
// probe has assigned it, so addresses can be assigned, too.
func tryAddress(a direct.Addresses, taken func(error) bool) error {
	const attempts = 10 // a concurrent probe may remove it between two calls
	scratch := netip.AddrFrom4([4]byte{198, 18, 84, 1})
	var err error
	for range attempts {
		if err = a.Add(scratch); err == nil {
			return a.Remove(scratch)
		}
		if !taken(err) {
			return err
		}
		own, failed := a.List()
		if failed != nil {
			return errors.Join(err, failed)
		}
		if slices.Contains(own, scratch) {
			return a.Remove(scratch)
		}
	}
	return err
}

// lifetime is the valid lifetime of owned addresses in seconds: "TAND" in ASCII, 44 years, a number
// that no other program would choose. Windows counts it down.
const lifetime = 0x54414e44

// slack is the time in seconds, a year, for which an assigned address is recognised.
const slack = 365 * 24 * 3600

// marked reports whether an address with this remaining lifetime in seconds is owned.
func marked(seconds uint32) bool { return seconds <= lifetime && seconds > lifetime-slack }
