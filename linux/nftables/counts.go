// SPDX-License-Identifier: Apache-2.0

package nftables

import "github.com/tandem-proxy/tandem/linux/nft"

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
