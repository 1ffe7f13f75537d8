// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Mode is the nftables mode.
func Mode() dataplane.Mode {
	return onLinux(dataplane.Mode{Name: config.NFTables, System: "linux", Conntrack: true, Announced: true, Plan: plan})
}

func options(c *config.Config) Options {
	return Options{Mark: 1 << c.MasqueradeBit, Liberal: c.Conntrack.TCPBeLiberal, Count: c.CountConnections, CountEndpoints: c.CountConnections && c.CountEndpoints}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(options(c)), host, ports, table.Script)
}

func (*Compiler) Evaluate(objects map[nft.Key]nft.Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return nft.NewSim(objects, host).Decide
}

func (*Compiler) Text(k nft.Key, v nft.Value) string { return nft.Describe(k, v) }

// Opaque: of a chain, the kernel's rules are compared
// with ours and not decoded.
func (*Compiler) Opaque(k nft.Key, v nft.Value) bool { return nft.Opaque(k, v) }

func (*Compiler) DecodeKey(text []byte) (nft.Key, error) { return table.DecodeKey(text) }

// counterMemory bounds the kernel's memory of counters in elements, in bytes.
const counterMemory = 20_000_000

// The kernel's memory of a counter in an element: struct nft_counter for each possible CPU (two
// 64-bit numbers) and the expression with its pointer (net/netfilter/nft_counter.c).
const (
	counterPerCPU  = 16
	counterElement = 16
)

// mostCounters is how many there may be on a machine with that many possible CPUs.
func mostCounters(cpus int) int { return counterMemory / (cpus*counterPerCPU + counterElement) }

// counted are the sets whose elements count.
func (o Options) counted() []*nft.Set {
	sets := []*nft.Set{setVIPs, setVIPsPod, setVIPsHost, setNodePorts, setNodePortsPod, setNodePortsHost}
	if o.CountEndpoints {
		sets = append(sets, slotSets()...)
	}
	return sets
}

// slotSets are those of endpoints. Endpoints of ports with affinity are not counted.
func slotSets() []*nft.Set { return []*nft.Set{setSlots, setNodeSlots} }
