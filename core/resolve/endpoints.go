package resolve

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// endpoint is a candidate: one address and port of a slice, with what decides
// about its use.
type endpoint struct {
	addr            netip.AddrPort
	local, unplaced bool // on this node; nobody knows where
	state           model.EndpointState
	hints           *model.Hints
}

// endpoints returns the endpoints of a port in address order, each once.
//
// Slices belong to a port by port name and protocol; the Service's targetPort
// plays no part, so the numbers may differ from slice to slice. Where one
// address and port stands in several slices (it moves from one to another, or a
// finished pod's address was given to a new one) the best conditions count, in
// whatever order they are met: kubernetes issue 135266.
func (r *Result) endpoints(
	host *model.Host, svc *model.Service, port model.ServicePort, family model.Family, own []Address,
) []endpoint {
	from, named := r.supply.ports[portKey{family, port.Name, port.Proto}]
	if !named {
		if r.supply.any[family] {
			r.Problem(svc, model.WhyNoTargetPort, "port %q (%s %d)", port.Name, port.Proto, port.Port)
		}
		return nil
	}
	all := unique(r.supply.candidates(host, from))
	return slices.DeleteFunc(all, func(e endpoint) bool {
		if slices.ContainsFunc(own, func(a Address) bool { return a.At == e.addr }) {
			r.Problem(svc, model.WhyOwnFrontend, "endpoint %s", e.addr)
			return true
		}
		why := noEndpoint(host, e.addr.Addr())
		if why != "" {
			r.Problem(svc, model.WhyBadAddress, "endpoint %s (%s)", e.addr.Addr(), why)
		}
		return why != ""
	})
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
