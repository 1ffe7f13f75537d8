// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Mode is the userspace mode with redirect rules. Handover returns what passes the sockets of
// relays to the next process; it may return nil.
func Mode(handover func() relay.Handover) dataplane.Mode {
	return dataplane.Mode{
		Name: relay.Mode, System: "linux", Ephemeral: true,
		Probe: probe, Open: opener(handover), Remove: remove, Plan: plan,
	}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(markOf(c)), host, ports, Script)
}

// Script renders objects as what iptables-restore and ip6tables-restore read, one
// part for each. The ports of relays are examples, in the order of their names; at
// run time the system chooses them.
func Script(objects map[Key]Value) string {
	ports := map[RelayID]uint16{}
	const first = 40000
	for _, k := range sorted(objects, kindRelay) {
		ports[k.Relay] = uint16(first + len(ports))
	}
	var b strings.Builder
	for _, f := range model.Families() {
		if _, ok := objects[Key{Kind: kindAddress, Family: f}]; !ok {
			continue
		}
		fmt.Fprintf(&b, "# %s; relays listen on %s, an address of lo\n", xtables.RestoreCommand(f), relayAddr(f))
		batch := &batch{}
		for _, k := range sorted(objects, KindChain, kindEntry, kindJump) {
			switch v := objects[k]; {
			case k.Family != f:
			case k.Kind == KindChain:
				batch.Rewrite(k.Chain, v.Rules)
			case k.Kind == kindEntry:
				batch.put(k, entryRule(k, v.To, ports[v.To.Relay]))
			default:
				batch.put(k, jumpRule(k))
			}
		}
		b.Write(batch.Text(xtables.NAT))
	}
	return b.String()
}
