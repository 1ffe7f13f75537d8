// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strconv"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// Limits of the Gateway API that manifests in a folder need not keep.
const (
	maxParents   = 32
	maxBackends  = 16
	maxGrants    = 16
	largestShare = 1_000_000 // weight of a backend
)

// TCPRoute converts a TCPRoute. It returns nil for those without a Service as a parent:
// they are for gateways.
func TCPRoute(o *gateway.TCPRoute) (*model.Route, []model.Problem) {
	if o == nil {
		return nil, nil
	}
	return route(model.TCP, &o.Route)
}

// UDPRoute converts a UDPRoute like TCPRoute.
func UDPRoute(o *gateway.UDPRoute) (*model.Route, []model.Problem) {
	if o == nil {
		return nil, nil
	}
	return route(model.UDP, &o.Route)
}

func route(proto model.Proto, o *gateway.Route) (*model.Route, []model.Problem) {
	r := &model.Route{
		Name:    model.RouteName{Proto: proto, Namespace: intern(o.Namespace), Name: o.Name},
		Created: o.CreationTimestamp.Time, Version: versionNumber(o.ResourceVersion),
	}
	f := &faults{kind: r.Name.Kind(), meta: &o.ObjectMeta}
	if r.Parents = parents(f, o.Spec.ParentRefs); len(r.Parents) == 0 {
		return nil, f.problems()
	}
	if n := len(o.Spec.Rules); n > 1 {
		f.bad(model.WhyUnsupported, "spec.rules", strconv.Itoa(n), "only the first counts")
	}
	if len(o.Spec.Rules) > 0 {
		r.Backends = backends(f, o.Spec.Rules[0].BackendRefs)
	}
	return r, f.problems()
}

// parents converts the Services among the parents of a route. Those of other namespaces
// are not supported: such a route is for the clients of its own namespace alone (GEP-1426),
// and no data plane knows a client's namespace.
func parents(f *faults, refs []gateway.ParentRef) (all []model.RouteParent) {
	const path = "spec.parentRefs"
	for i, ref := range refs {
		if ref.Group == nil || *ref.Group != "" || ref.Kind == nil || *ref.Kind != "Service" {
			continue // a gateway's
		}
		p := model.RouteParent{Service: intern(ref.Name), PortName: intern(ref.SectionName)}
		ok := true
		if ref.Port != nil {
			p.Port, ok = port16(*ref.Port)
		}
		switch {
		case len(all) == maxParents:
			f.bad(model.WhyInvalid, path, strconv.Itoa(len(refs)), "too many, the rest is ignored")
			return all
		case ref.Namespace != "" && ref.Namespace != f.meta.Namespace:
			f.bad(model.WhyUnsupported, at(path, i, "namespace"), ref.Namespace, "a Service of another namespace, ignored")
		case ref.Name == "" || !portName(ref.Name):
			f.bad(model.WhyInvalid, at(path, i, "name"), ref.Name, "no name of a Service, ignored")
		case !portName(ref.SectionName):
			f.bad(model.WhyInvalid, at(path, i, "sectionName"), ref.SectionName, "no name of a port, ignored")
		case !ok:
			f.bad(model.WhyInvalid, at(path, i, "port"), strconv.Itoa(int(*ref.Port)), "not within 1..65535, ignored")
		default:
			all = append(all, p)
		}
	}
	return all
}

// backends converts the backends of a rule that are Services.
func backends(f *faults, refs []gateway.BackendRef) (all []model.RouteBackend) {
	const path = "spec.rules[0].backendRefs"
	if len(refs) > maxBackends {
		f.bad(model.WhyInvalid, path, strconv.Itoa(len(refs)), "too many, the rest is ignored")
		refs = refs[:maxBackends]
	}
	for i, ref := range refs {
		b := model.RouteBackend{Service: model.ServiceName{Namespace: f.meta.Namespace, Name: intern(ref.Name)}, Weight: 1}
		if ref.Namespace != "" {
			b.Service.Namespace = intern(ref.Namespace)
		}
		has := false
		if ref.Port != nil {
			b.Port, has = port16(*ref.Port)
		}
		weight := int32(1)
		if ref.Weight != nil {
			weight = *ref.Weight
		}
		b.Weight = uint32(weight)
		switch {
		case ref.Group != "" || ref.Kind != nil && *ref.Kind != "Service":
			f.bad(model.WhyRouteBackend, at(path, i, "kind"), ref.Group+"/"+value(ref.Kind), "not a Service")
		case ref.Name == "" || !portName(ref.Name):
			f.bad(model.WhyRouteBackend, at(path, i, "name"), ref.Name, "no name of a Service")
		case !portName(ref.Namespace):
			f.bad(model.WhyRouteBackend, at(path, i, "namespace"), ref.Namespace, "no namespace")
		case !has:
			f.add(model.WhyRouteBackend, at(path, i, "port"), "missing, or not within 1..65535")
		case weight < 0 || weight > largestShare:
			f.bad(model.WhyRouteBackend, at(path, i, "weight"), strconv.Itoa(int(weight)), "not within 0..1000000")
		default:
			all = append(all, b)
		}
	}
	return all
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// ReferenceGrant converts a ReferenceGrant. It returns nil for those that are not about
// routes to Services.
func ReferenceGrant(o *gateway.ReferenceGrant) (*model.Grant, []model.Problem) {
	if o == nil {
		return nil, nil
	}
	g := &model.Grant{Name: model.GrantName{Namespace: intern(o.Namespace), Name: o.Name}}
	f := &faults{kind: "ReferenceGrant", meta: &o.ObjectMeta}
	if n := max(len(o.Spec.From), len(o.Spec.To)); n > maxGrants {
		f.bad(model.WhyInvalid, "spec", strconv.Itoa(n), "too many entries, the rest is ignored")
	}
	for _, from := range o.Spec.From[:min(len(o.Spec.From), maxGrants)] {
		proto, ok := map[string]model.Proto{"TCPRoute": model.TCP, "UDPRoute": model.UDP}[from.Kind]
		if ok && from.Group == gateway.Group {
			g.From = append(g.From, model.GrantFrom{Proto: proto, Namespace: intern(from.Namespace)})
		}
	}
	for _, to := range o.Spec.To[:min(len(o.Spec.To), maxGrants)] {
		switch {
		case to.Group != "" || to.Kind != "Service":
		case to.Name == "":
			g.All = true
		default:
			g.To = append(g.To, intern(to.Name))
		}
	}
	if len(g.From) == 0 || !g.All && len(g.To) == 0 {
		return nil, f.problems()
	}
	return g, f.problems()
}
