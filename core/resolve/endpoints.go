package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// endpoint is a candidate: one address and port of a slice, with what decides
// about its use.
type endpoint struct {
	addr  netip.AddrPort
	local bool
	state model.EndpointState
	hints *model.Hints
}

// endpoints returns the endpoints of a port in address order, each once.
//
// Slices belong to a port by port name and protocol; the Service's targetPort
// plays no part, so the numbers may differ from slice to slice. Where one
// address and port stands in several slices (it moves from one to another, or a
// finished pod's address was given to a new one) the best conditions count, in
// whatever order they are met: kubernetes issue 135266.
func (r *Result) endpoints(
	host *model.Host, svc *model.Service, port model.ServicePort, family model.Family,
	from []*model.Slice, own []Address,
) []endpoint {
	var all []endpoint
	named, any := false, false
	for _, s := range from {
		if s.Family != family {
			continue
		}
		any = any || len(s.Endpoints) > 0
		number, ok := portOf(s, port)
		if !ok {
			continue
		}
		named = true
		all = slices.Grow(all, len(s.Endpoints))
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			all = append(all, endpoint{
				addr: netip.AddrPortFrom(e.Addr, number), local: e.Node != "" && e.Node == host.Name, state: e.State, hints: e.Hints,
			})
		}
	}
	if any && !named {
		r.problem(svc, model.WhyNoTargetPort, fmt.Sprintf("port %q (%s %d)", port.Name, port.Proto, port.Port))
	}
	all = unique(all)
	return slices.DeleteFunc(all, func(e endpoint) bool {
		if slices.ContainsFunc(own, func(a Address) bool { return a.At == e.addr }) {
			r.problem(svc, model.WhyOwnFront, "endpoint "+e.addr.String())
			return true
		}
		why := noEndpoint(host, e.addr.Addr())
		if why != "" {
			r.problem(svc, model.WhyBadAddress, fmt.Sprintf("endpoint %s (%s)", e.addr.Addr(), why))
		}
		return why != ""
	})
}

func portOf(s *model.Slice, port model.ServicePort) (number uint16, ok bool) {
	for _, p := range s.Ports {
		if p.Name == port.Name && p.Proto == port.Proto {
			return p.Port, true
		}
	}
	return 0, false
}

// unique sorts endpoints by address and keeps the best of each. The sort is
// stable, so among equals the first slice by name counts.
func unique(all []endpoint) []endpoint {
	slices.SortStableFunc(all, func(a, b endpoint) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return worth(b.state) - worth(a.state)
	})
	return slices.CompactFunc(all, func(a, b endpoint) bool { return a.addr == b.addr })
}

func worth(s model.EndpointState) (n int) {
	if s.Has(model.Ready) {
		n += 4
	}
	if s.Has(model.Serving) {
		n += 2
	}
	if !s.Has(model.Terminating) {
		n++
	}
	return n
}
