// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// ServiceHash is a hash of what all nodes should know of a Service alike: its object
// and its endpoints. What one node makes of it, by traffic policies, zones and its
// own addresses, and what it has seen of endpoints, is not in it, nor are resourceVersions: the same object may be known
// in another version that differs in nothing that counts.
func ServiceHash(s *track.Service) string {
	h := newHasher()
	h.service(s.Object)
	for _, slice := range s.Slices { // in order of their names
		h.slice(slice)
	}
	return h.String()
}

// hasher adds values in a form that no two sequences of them share: FNV-1a with 64 bits,
// as hash/fnv has it, but without an allocation for each value. A list of 10,000 Services
// is half a million of them.
type hasher struct{ sum uint64 }

func newHasher() *hasher { return &hasher{14695981039346656037} }

func (h *hasher) byte(b byte) { h.sum = (h.sum ^ uint64(b)) * 1099511628211 }

func (h *hasher) String() string { return fmt.Sprintf("%016x", h.sum) }

func (h *hasher) text(s string) {
	h.number(uint64(len(s)))
	for i := range len(s) {
		h.byte(s[i])
	}
}

func (h *hasher) address(a netip.Addr) {
	var buf [64]byte
	text := a.AppendTo(buf[:0])
	h.number(uint64(len(text)))
	for _, b := range text {
		h.byte(b)
	}
}

func (h *hasher) number(n uint64) {
	for range 8 {
		h.byte(byte(n))
		n >>= 8
	}
}

func (h *hasher) flag(is bool) {
	if is {
		h.number(1)
	} else {
		h.number(0)
	}
}

// addAll adds a list in an order of its own: that of the inputs may differ.
func addAll[T fmt.Stringer](h *hasher, all []T) {
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = v.String()
	}
	slices.Sort(texts)
	h.number(uint64(len(texts)))
	for _, t := range texts {
		h.text(t)
	}
}

func (h *hasher) service(s *model.Service) {
	h.text(s.Name.String())
	h.number(uint64(s.Type))
	addAll(h, s.ClusterIPs)
	addAll(h, s.ExternalIPs)
	addAll(h, s.LoadBalancerIPs)
	h.flag(s.Restricted)
	addAll(h, s.SourceRanges)
	h.number(uint64(s.External))
	h.number(uint64(s.Internal))
	h.number(uint64(s.SessionAffinity))
	h.number(uint64(s.HealthCheckNodePort))
	h.flag(s.PreserveDestination)
	h.number(uint64(s.Choice.Scheduler))
	h.number(uint64(s.Choice.SlowStart))
	h.number(math.Float64bits(s.Choice.Spill.Above))
	h.number(uint64(s.Choice.Spill.Floor))
	h.number(uint64(len(s.Ports)))
	for _, p := range s.Ports {
		h.text(p.Name)
		h.number(uint64(p.Proto))
		h.number(uint64(p.Port))
		h.number(uint64(p.NodePort))
	}
}

func (h *hasher) slice(s *model.Slice) {
	h.text(s.Name.String())
	h.number(uint64(s.Family))
	h.number(uint64(len(s.Ports)))
	for _, p := range s.Ports {
		h.text(p.Name)
		h.number(uint64(p.Proto))
		h.number(uint64(p.Port))
	}
	h.flag(s.Weighted)
	h.number(uint64(s.Weight))
	h.number(uint64(len(s.Endpoints)))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		h.address(e.Addr)
		h.text(e.Node)
		h.number(uint64(e.State &^ model.Unanswered))
		h.flag(e.Hints != nil)
		if e.Hints != nil {
			for _, all := range [][]string{e.Hints.Zones, e.Hints.Nodes} {
				h.number(uint64(len(all)))
				for _, name := range all {
					h.text(name)
				}
			}
		}
	}
}
