// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// ServiceHash is a hash of what all nodes should know of a Service alike: its object
// and its endpoints. What one node makes of it, by traffic policies, zones and its
// own addresses, and what it has seen of endpoints, is not in it, nor are resourceVersions: the same object may be known
// in another version that differs in nothing that counts.
func ServiceHash(s *track.Service) string {
	h := hasher{fnv.New64a()}
	h.service(s.Object)
	for _, slice := range s.Slices { // in order of their names
		h.slice(slice)
	}
	return h.String()
}

// hashAll is a hash of the hashes of all Services, which are in order of their names.
func hashAll(services []Service) string {
	h := hasher{fnv.New64a()}
	for i := range services {
		h.text(services[i].Name)
		h.text(services[i].Hash)
	}
	return h.String()
}

// hasher adds values in a form that no two sequences of them share.
type hasher struct{ hash.Hash64 }

func (h hasher) String() string { return fmt.Sprintf("%016x", h.Sum64()) }

func (h hasher) text(s string) {
	h.number(uint64(len(s)))
	_, _ = h.Write([]byte(s)) // a hash never fails
}

func (h hasher) number(n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	_, _ = h.Write(b[:])
}

func (h hasher) flag(is bool) {
	if is {
		h.number(1)
	} else {
		h.number(0)
	}
}

// addAll adds a list in an order of its own: that of the inputs may differ.
func addAll[T fmt.Stringer](h hasher, all []T) {
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

func (h hasher) service(s *model.Service) {
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
	h.text(fmt.Sprintf("%+v", s.Choice))
	h.number(uint64(len(s.Ports)))
	for _, p := range s.Ports {
		h.text(p.Name)
		h.number(uint64(p.Proto))
		h.number(uint64(p.Port))
		h.number(uint64(p.NodePort))
	}
}

func (h hasher) slice(s *model.Slice) {
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
		h.text(e.Addr.String())
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
