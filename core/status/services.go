// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Services lists Services with their frontends and, of a single one, every endpoint
// of its slices and why it is used or not. Its JSON form is stable.
type Services struct {
	Node     string          `json:"node"`
	Mode     string          `json:"mode"`
	Services []ServiceDetail `json:"services"`
}

// ServiceDetail is one Service.
type ServiceDetail struct {
	Service
	Frontends []FrontendDetail `json:"frontends"`
	Used      int              `json:"used"`                // endpoints that take connections, each port's
	Endpoints []EndpointDetail `json:"endpoints,omitempty"` // of a single Service
}

// FrontendDetail is a frontend, and since when it is programmed; absent for "since the
// start, or longer".
type FrontendDetail struct {
	Frontend
	Since *time.Time `json:"since,omitempty"`
}

// EndpointDetail is one endpoint of a slice for one port.
type EndpointDetail struct {
	Port       string     `json:"port"`
	Protocol   string     `json:"protocol"`
	Address    string     `json:"address"`
	Node       string     `json:"node,omitempty"`
	Slice      string     `json:"slice"`
	Conditions []string   `json:"conditions"`
	Used       bool       `json:"used"`
	Why        string     `json:"why"`
	Since      *time.Time `json:"since,omitempty"` // as for frontends; of used ones
}

// ServicesOf lists the Services of a snapshot that a filter selects.
func ServicesOf(s *engine.Snapshot, only Filter) Services {
	list := ListServices(s, only)
	out := Services{Services: make([]ServiceDetail, 0, list.Len)}
	for one := range list.Each {
		own := *one
		own.Frontends = slices.Clone(one.Frontends)
		out.Services = append(out.Services, own)
	}
	return out
}

// ListServices lists the Services of a snapshot that a filter selects, one at a time.
func ListServices(s *engine.Snapshot, only Filter) wire.List[ServiceDetail] {
	faults := faultsOf(s)
	selected := s
	var one ServiceDetail // at a time
	var memory []Frontend
	if !only.All() {
		selected = new(engine.Snapshot)
		for _, svc := range s.Each() {
			if !only.Named(svc.Object.Name.String()) {
				continue
			}
			if one.describe(s, svc, faults, nil, &memory); only.Match(one.Name, one.State) {
				selected.Services = append(selected.Services, svc)
			}
		}
	}
	return wire.List[ServiceDetail]{Len: len(selected.Services), Each: func(yield func(*ServiceDetail) bool) {
		for _, svc := range selected.Each() {
			if one.describe(s, svc, faults, nil, &memory); !yield(&one) {
				return
			}
		}
	}}
}

// Recall restores the states and problems that Services had when a snapshot was taken:
// failures do not follow from its inputs.
func (s *Services) Recall(then []Service) {
	known := make(map[string]*Service, len(then))
	for i := range then {
		known[then[i].Name] = &then[i]
	}
	for i := range s.Services {
		if was := known[s.Services[i].Name]; was != nil {
			s.Services[i].State, s.Services[i].Problems = was.State, was.Problems
		}
	}
}

// ServiceOf describes one; ok is false when there is none of the name.
func ServiceOf(s *engine.Snapshot, name model.ServiceName, since engine.Since) (out Services, ok bool) {
	svc, ok := Find(s, name)
	if !ok {
		return out, false
	}
	var d ServiceDetail
	d.describe(s, svc, faultsOf(s), since, new([]Frontend))
	for _, u := range resolve.EndpointUses(s.Host, resolve.MarkUnanswered(svc.Slices, s.Suspects), svc.Ports) {
		e := EndpointDetail{
			Port: u.Port.Name, Protocol: u.Port.Proto.String(), Address: u.Addr.String(), Node: u.Node,
			Slice: u.Slice.Name, Conditions: conditions(u.State), Used: u.Used, Why: u.Why,
		}
		if at, known := since[engine.SinceKey{Port: u.Port, At: u.Addr}]; known && u.Used {
			e.Since = &at
		}
		d.Endpoints = append(d.Endpoints, e)
	}
	return Services{Services: []ServiceDetail{d}}, true
}

// Find returns a Service of a snapshot.
func Find(s *engine.Snapshot, name model.ServiceName) (svc *track.View, ok bool) {
	i, ok := slices.BinarySearchFunc(s.Services, name, func(svc *track.View, n model.ServiceName) int { return svc.Object.Name.Compare(n) })
	if !ok {
		return nil, false
	}
	return s.Services[i], true
}

// describe describes a Service, in place of the one before. Memory is for its frontends meanwhile.
func (d *ServiceDetail) describe(s *engine.Snapshot, svc *track.View, found faults, since engine.Since, memory *[]Frontend) {
	*d = ServiceDetail{Service: Service{Name: svc.Object.Name.String(), Hash: ServiceHash(svc), Frontends: (*memory)[:0]}, Frontends: d.Frontends[:0]}
	d.Service.describe(svc, s, found.services[svc.Object.Name])
	described := d.Service.Frontends // in the order of ports and theirs
	*memory = described
	d.Service.Frontends = nil
	d.Frontends = slices.Grow(d.Frontends, len(described))
	if d.Frontends == nil {
		d.Frontends = []FrontendDetail{}
	}
	for _, p := range svc.Ports {
		most := 0
		for i := range p.Frontends {
			f := FrontendDetail{Frontend: described[len(d.Frontends)]}
			if at, known := since[engine.SinceKey{Port: p.ID, At: p.Frontends[i].At}]; known {
				f.Since = &at
			}
			most = max(most, f.Endpoints)
			d.Frontends = append(d.Frontends, f)
		}
		d.Used += most
	}
}

// conditions are the names of those that hold.
func conditions(s model.EndpointState) (names []string) {
	names = []string{}
	for _, c := range [...]struct {
		is   model.EndpointState
		name string
	}{{model.Ready, "ready"}, {model.Serving, "serving"}, {model.Terminating, "terminating"}} {
		if s.Has(c.is) {
			names = append(names, c.name)
		}
	}
	return names
}
