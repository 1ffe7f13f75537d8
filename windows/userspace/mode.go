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

// placement is that for a kind of adapter.
func placement(loopback bool) direct.Placement {
	if loopback {
		return nodeOnly{}
	}
	return direct.Adapter{}
}

// nodeOnly is for nodes without an adapter for containers.
type nodeOnly struct{ direct.Adapter }

var _ direct.Placement = nodeOnly{}

func (nodeOnly) Note() string {
	return "node ports apart, only processes of this node are served: it has no adapter for containers, so the addresses are assigned to its loopback adapter"
}

// tryAddress assigns an address for benchmarks (RFC 2544), and removes it again. Where it
// is there already (taken reports that of an error of Add) and marked, a probe at the
// same time has it or a killed one has left it: then addresses can be assigned, too.
func tryAddress(a direct.Addresses, taken func(error) bool) error {
	const attempts = 10 // a probe at the same time may remove it between two calls
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

// lifetime is the valid lifetime in seconds of our addresses: 44 years, a number
// that no other program would choose. The system counts it down.
const lifetime = 0x54414e44

// slack is how long an address may have been assigned and still be recognised: a
// year without a restart.
const slack = 365 * 24 * 3600

// marked reports whether an address with this remaining lifetime is owned.
func marked(seconds uint32) bool { return seconds <= lifetime && seconds > lifetime-slack }
