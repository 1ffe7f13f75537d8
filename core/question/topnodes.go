// SPDX-License-Identifier: Apache-2.0

package question

import (
	"slices"
	"sync"
)

// TopNodes is what the nodes of a cluster count, added up by Service. Its JSON form is stable.
type TopNodes struct {
	Nodes    []TopNode    `json:"nodes"`
	Services []TopService `json:"services"`           // most first
	Unlisted int          `json:"unlisted,omitempty"` // counts of Services, frontends and endpoints beyond those that are listed
}

// TopNode is a node, and what it does not count.
type TopNode struct {
	NodeAnswer
	Mode                string `json:"mode,omitempty"`
	Tracked             bool   `json:"tracked,omitempty"`             // its open connections are those of connection tracking
	NotCounted          string `json:"notCounted,omitempty"`          // why it has no new connections
	EndpointsNotCounted string `json:"endpointsNotCounted,omitempty"` // why it has nothing of endpoints, where that was asked for
	BytesNotCounted     string `json:"bytesNotCounted,omitempty"`     // why its traffic has no bytes
}

// TopSum adds up what nodes count, as their answers come: a connection is counted by the node that chooses its
// endpoint, and by no other. It is safe for concurrent use.
type TopSum struct {
	mu        sync.Mutex
	nodes     []TopNode
	services  map[string]*TopService
	addresses map[topAddressKey]*TopAddress // the frontends and endpoints of services
	size      int                           // bytes of both, about
	unlisted  int
}

// topAddressKey is a frontend or an endpoint of a Service.
type topAddressKey struct {
	service, address, proto string
	endpoint                bool
}

// Of answers, which are untrusted input, so many bytes are kept, with so many for an entry beside its texts.
const (
	maxSummed    = 64 << 20
	topEntrySize = 128
)

// Add adds a node's answer.
func (s *TopSum) Add(node, pod string, t *Top) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.services == nil {
		s.services, s.addresses = map[string]*TopService{}, map[topAddressKey]*TopAddress{}
	}
	s.nodes = append(s.nodes, TopNode{
		NodeAnswer: answered(node, pod), Mode: t.Mode, Tracked: t.Tracked, NotCounted: t.NotCounted, EndpointsNotCounted: t.EndpointsNotCounted, BytesNotCounted: t.BytesNotCounted,
	})
	for i := range t.Services {
		own := &t.Services[i]
		sum := s.services[own.Service]
		if sum == nil {
			if !s.room(len(own.Service)) {
				continue
			}
			sum = &TopService{Service: own.Service}
			s.services[own.Service] = sum
		}
		sum.New += own.New
		sum.PerSecond += own.PerSecond
		sum.Traffic = sum.Traffic.plus(own.Traffic)
		s.addAddresses(topAddressKey{service: own.Service}, own.Frontends)
		s.addAddresses(topAddressKey{service: own.Service, endpoint: true}, own.Endpoints)
	}
}

func (s *TopSum) addAddresses(k topAddressKey, all []TopAddress) {
	for i := range all {
		own := &all[i]
		k.address, k.proto = own.Address, own.Proto
		sum := s.addresses[k]
		if sum == nil {
			if !s.room(len(own.Address) + len(own.Proto) + len(own.Pod)) {
				continue
			}
			sum = &TopAddress{Address: own.Address, Pod: own.Pod, Proto: own.Proto}
			s.addresses[k] = sum
		}
		sum.New += own.New
		sum.PerSecond += own.PerSecond
		sum.Traffic = sum.Traffic.plus(own.Traffic)
	}
}

// room reports whether an entry with texts of so many bytes can be kept; else it is counted.
func (s *TopSum) room(texts int) bool {
	size := s.size + topEntrySize + texts
	if size > maxSummed {
		s.unlisted++
		return false
	}
	s.size = size
	return true
}

// Fail notes why a node gave no answer.
func (s *TopSum) Fail(node, pod string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes = append(s.nodes, TopNode{NodeAnswer: unanswered(node, pod, err)})
}

// Result is the sum of what was added; nothing is to be added later.
func (s *TopSum) Result() TopNodes {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, sum := range s.addresses {
		of := s.services[k.service]
		if k.endpoint {
			of.Endpoints = append(of.Endpoints, *sum)
		} else {
			of.Frontends = append(of.Frontends, *sum)
		}
	}
	all := Top{Services: make([]TopService, 0, len(s.services))}
	for _, sum := range s.services {
		sortAddresses(sum.Frontends)
		sortAddresses(sum.Endpoints)
		if sum.Frontends == nil {
			sum.Frontends = []TopAddress{}
		}
		all.Services = append(all.Services, *sum)
	}
	all.sort()
	slices.SortFunc(s.nodes, func(a, b TopNode) int { return a.compare(&b.NodeAnswer) })
	return TopNodes{Nodes: s.nodes, Services: all.Services, Unlisted: s.unlisted}
}

// plus is the sum of the traffic of two nodes, neither of which changes; nil where neither has any.
func (t *TopTraffic) plus(more *TopTraffic) *TopTraffic {
	if more == nil {
		return t
	}
	sum := *more
	if t != nil {
		sum.add(*t)
		sum.PerSecond += t.PerSecond
	}
	return &sum
}
