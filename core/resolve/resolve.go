package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Result is what policy makes of one Service.
type Result struct {
	Ports    []*model.Port
	Problems []model.Problem // at most model.MaxProblems
	More     int             // problems that there are beside them

	used   seen
	ids    map[model.PortID]struct{} // of Ports, once they are many
	local  map[netip.Addr]struct{}   // ready endpoints on this node, in the family in work
	supply supply
}

// Service resolves a Service with its slices, which must be sorted by name. It
// gives one Port for each port and each IP family in which the Service has a
// cluster IP. Pools are in address order; see Reslot. The Service must be within
// the limits (Excess); of endpoints beyond them some are left out.
func Service(host *model.Host, svc *model.Service, from []*model.Slice) Result {
	r := Result{used: seen{}}
	r.supply = r.supplyOf(host, svc, from)
	if svc.Name == APIService {
		if _, more := apiServers(from); more {
			r.Problem(svc, model.WhyTooLarge, "more than %d endpoints: as many are protected from other Services, as API servers", MaxAPIServers)
		}
	}
	for _, family := range model.Families() {
		if !serves(svc, family) {
			continue
		}
		first, on := len(r.Ports), vips(svc, family)
		for _, port := range svc.Ports {
			r.port(host, svc, port, family, on)
		}
		r.announce(svc, r.Ports[first:])
	}
	return r
}

// serves reports whether a Service has a cluster IP of a family. Without one it
// does not exist in that family, whatever other addresses it has.
func serves(svc *model.Service, family model.Family) bool {
	for _, ip := range svc.ClusterIPs {
		if model.FamilyOf(ip) == family {
			return true
		}
	}
	return false
}

func (r *Result) port(host *model.Host, svc *model.Service, port model.ServicePort, family model.Family, on []vip) {
	id := model.PortID{Service: svc.Name, Name: port.Name, Proto: port.Proto, Family: family}
	if !r.first(id) {
		r.Problem(svc, model.WhyFrontendTaken, "a second port named %q (%s)", port.Name, port.Proto)
		return
	}
	addresses := slices.DeleteFunc(addressesOf(svc, port, family, on), func(a Address) bool {
		return !r.usable(host, svc, a)
	})
	r.closed(svc, addresses)
	all := r.endpoints(host, svc, port, family, addresses)
	pools := choose(host, all)
	r.count(svc, all)
	p := &model.Port{ID: id, SessionAffinity: svc.SessionAffinity, PreserveDestination: svc.PreserveDestination, Frontends: fronts(host, svc, addresses, pools)}
	if port.Proto != model.TCP {
		p.Draining = draining(all, pools)
	}
	r.Ports = append(r.Ports, p)
}

// first reports whether there is no port of this id yet. It is called once for each
// that is added.
func (r *Result) first(id model.PortID) bool {
	const few = 16 // not worth a map
	if len(r.Ports) < few {
		return !slices.ContainsFunc(r.Ports, func(p *model.Port) bool { return p.ID == id })
	}
	if r.ids == nil {
		r.ids = map[model.PortID]struct{}{}
		for _, p := range r.Ports {
			r.ids[p.ID] = struct{}{}
		}
	}
	_, again := r.ids[id]
	r.ids[id] = struct{}{}
	return !again
}

// usable reports whether a Service can have an address, and says why not.
func (r *Result) usable(host *model.Host, svc *model.Service, a Address) bool {
	no := refuse(host, svc, a)
	switch {
	case no != refusal{}:
		r.Problem(svc, no.why, "%s", no.detail)
	case !r.used.first(a):
		r.Problem(svc, model.WhyFrontendTaken, "%s %s (%s) is listed twice", a.Kind, a.At, a.Proto)
	default:
		return true
	}
	return false
}

// closed says which addresses let nobody in, for want of a source range of their
// family.
func (r *Result) closed(svc *model.Service, addresses []Address) {
	for _, a := range addresses {
		if restricted(svc, a) && !slices.ContainsFunc(svc.SourceRanges, func(p netip.Prefix) bool {
			return model.FamilyOf(p.Addr()) == model.FamilyOf(a.At.Addr())
		}) {
			r.Problem(svc, model.WhyClosed, "%s %s", a.Kind, a.At.Addr())
		}
	}
}

// Problem notes a problem of a Service, once. Beyond those that anybody reads they
// are only counted: there may be one for each endpoint of each port.
func (r *Result) Problem(svc *model.Service, why model.Reason, format string, args ...any) {
	if len(r.Problems) == model.MaxProblems {
		r.More++
		return
	}
	p := model.Problem{Object: "Service " + svc.Name.String(), Where: svc.Where, Why: why, Detail: fmt.Sprintf(format, args...)}
	if !slices.Contains(r.Problems, p) {
		r.Problems = append(r.Problems, p)
	}
}
