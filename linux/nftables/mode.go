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

// Opaque reports whether v is a chain that was read back: its rules are compared by digest,
// not decoded.
func (*Compiler) Opaque(k nft.Key, v nft.Value) bool { return nft.Opaque(k, v) }

func (*Compiler) DecodeKey(text []byte) (nft.Key, error) { return table.DecodeKey(text) }

// counterMemory bounds the kernel memory of elements' counters, in bytes.
const counterMemory = 20_000_000

// The kernel memory of an element's counter, in bytes: struct nft_counter (two 64-bit numbers) for each
// possible CPU, and the expression with its pointer (net/netfilter/nft_counter.c).
const (
	counterPerCPU  = 16
	counterElement = 16
)

// mostCounters returns how many counters counterMemory allows with that many possible CPUs.
func mostCounters(cpus int) int { return counterMemory / (cpus*counterPerCPU + counterElement) }

// counted returns the sets whose elements have counters.
func (o Options) counted() []*nft.Set {
	sets := []*nft.Set{setVIPs, setVIPsPod, setVIPsHost, setNodePorts, setNodePortsPod, setNodePortsHost}
	if o.CountEndpoints {
		sets = append(sets, slotSets()...)
	}
	return sets
}

// slotSets returns the sets of endpoints, except those of ports with affinity.
func slotSets() []*nft.Set { return []*nft.Set{setSlots, setNodeSlots} }
