// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// ServiceHash is a hash of what all nodes should know of a Service alike: its object
// and its endpoints. What one node derives from it, by traffic policies, zones and its
// own addresses, and what it has seen of endpoints, is not in it, nor are resourceVersions: the same object may be known
// in another version that differs in nothing that counts.
func ServiceHash(s *track.View) string {
	h := hashService(s)
	return h.String()
}

func hashService(s *track.View) hasher {
	h := newHasher()
	h.service(s.Object)
	for _, slice := range s.Slices { // in order of their names
		h.slice(slice)
	}
	return *h
}

// hasher adds values in a form that no two sequences of them share: FNV-1a with 64 bits,
// as hash/fnv has it, but without an allocation for each value. A list of 10,000 Services
// is half a million of them.
type hasher struct{ sum uint64 }

// The constants of FNV-1a. To add a byte of zero is to multiply by the prime.
const (
	fnvBasis  uint64 = 14695981039346656037
	fnvPrime  uint64 = 1099511628211
	fnvPrime8 uint64 = 2232315406967589409 // its 8th power, modulo 2^64
)

func newHasher() *hasher { return &hasher{fnvBasis} }

func (h *hasher) String() string { return h.after("") }

// after returns a prefix and the hash.
func (h *hasher) after(prefix string) string {
	var buf [16]byte
	return prefix + string(h.appendTo(buf[:0]))
}

func (h *hasher) appendTo(b []byte) []byte {
	var buf [16]byte
	text := strconv.AppendUint(buf[:0], h.sum, 16)
	return append(append(b, "0000000000000000"[len(text):]...), text...)
}

func (h *hasher) text(s string) {
	h.number(uint64(len(s)))
	h.part(s)
}

// part adds a part of a text.
func (h *hasher) part(s string) { h.sum = mix(h.sum, s) }

func (h *hasher) bytes(text []byte) {
	h.number(uint64(len(text)))
	h.sum = mix(h.sum, text)
}

// mix adds bytes to a sum.
func mix[T string | []byte](sum uint64, text T) uint64 {
	for i := range len(text) {
		sum = (sum ^ uint64(text[i])) * fnvPrime
	}
	return sum
}

func (h *hasher) address(a netip.Addr) {
	var buf [64]byte
	h.bytes(a.AppendTo(buf[:0]))
}

// name adds the text of a name.
func (h *hasher) name(n model.ServiceName) {
	h.number(uint64(len(n.Namespace) + len("/") + len(n.Name)))
	h.part(n.Namespace)
	h.part("/")
	h.part(n.Name)
}

// hash adds the text of another hash.
func (h *hasher) hash(other hasher) {
	var buf [16]byte
	h.bytes(other.appendTo(buf[:0]))
}

// number adds 8 bytes, the lowest first: mostly one that is not zero.
func (h *hasher) number(n uint64) {
	if n < 1<<8 {
		h.sum = (h.sum ^ n) * fnvPrime8
		return
	}
	sum := h.sum
	for range 8 {
		sum = (sum ^ n&0xff) * fnvPrime
		n >>= 8
	}
	h.sum = sum
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
	if len(all) == 0 {
		h.number(0)
		return
	}
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
	h.name(s.Name)
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
