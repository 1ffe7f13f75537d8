package resolve

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// healthPort returns the port on which load balancers ask whether this node has
// endpoints of a Service, or 0. Only policy Local makes that a question.
func healthPort(svc *model.Service) uint16 {
	if svc.Type == model.LoadBalancer && svc.External == model.Local {
		return svc.HealthCheckNodePort
	}
	return 0
}

// count notes which of a port's endpoints a load balancer may count on: the
// ready ones of this node. Those that terminate still serve, but the balancer
// shall send nothing new to them (KEP-1669).
func (r *Result) count(svc *model.Service, all []endpoint) {
	if healthPort(svc) == 0 {
		return
	}
	for _, e := range all {
		if e.local && ready(e) {
			if r.local == nil {
				r.local = map[netip.Addr]struct{}{}
			}
			r.local[e.addr.Addr()] = struct{}{}
		}
	}
}

// announce tells all ports of a family what load balancers are told. A pod that
// serves several ports is one endpoint to them.
func (r *Result) announce(svc *model.Service, ports []*model.Port) {
	for _, p := range ports {
		p.HealthPort, p.LocalReady = healthPort(svc), len(r.local)
	}
	clear(r.local)
}
