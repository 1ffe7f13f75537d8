// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// LabelProxyName marks Services that another proxy serves.
const LabelProxyName = "service.kubernetes.io/service-proxy-name"

// The bounds of sessionAffinityConfig.clientIP.timeoutSeconds.
const (
	defaultAffinity = 3 * time.Hour
	maxAffinity     = 24 * time.Hour
)

// annotationPreserveDestination is kube-proxy's, for Windows (kubernetes#74825).
const annotationPreserveDestination = "preserve-destination"

// Service converts a Service. It returns nil for those that have no virtual IP or
// that we do not serve: headless, ExternalName, without cluster IP, or labelled for
// another proxy. Those give no problem. It also returns nil, with a problem, if no
// cluster IP is usable.
func Service(s *corev1.Service) (*model.Service, []model.Problem) {
	if s == nil || !Served(s) {
		return nil, nil
	}
	f := &faults{kind: "Service", meta: &s.ObjectMeta}
	svc := &model.Service{
		Name:       model.ServiceName{Namespace: intern(s.Namespace), Name: s.Name},
		Type:       serviceType(f, s.Spec.Type),
		Created:    s.CreationTimestamp.Time,
		Version:    versionNumber(s.ResourceVersion),
		ClusterIPs: clusterIPs(f, &s.Spec),
	}
	if len(svc.ClusterIPs) == 0 {
		return nil, f.problems()
	}
	svc.ExternalIPs = vips(f, "spec.externalIPs", s.Spec.ExternalIPs)
	svc.External = trafficPolicy(f, "spec.externalTrafficPolicy", string(s.Spec.ExternalTrafficPolicy))
	if p := s.Spec.InternalTrafficPolicy; p != nil {
		svc.Internal = trafficPolicy(f, "spec.internalTrafficPolicy", string(*p))
	}
	svc.SessionAffinity = sessionAffinity(f, &s.Spec)
	svc.PreserveDestination = s.Annotations[annotationPreserveDestination] == "true"
	if svc.Type == model.LoadBalancer {
		loadBalancer(f, svc, s)
	}
	svc.Choice = choice(f)
	svc.Ports = servicePorts(f, svc.Type, s.Spec.Ports)
	return svc, f.problems()
}

// Served reports whether a Service is one that Tandem serves: it has a virtual
// IP, and no other proxy was asked to.
func Served(s *corev1.Service) bool {
	if _, other := s.Labels[LabelProxyName]; other || s.Spec.Type == corev1.ServiceTypeExternalName {
		return false
	}
	ips := rawClusterIPs(&s.Spec)
	return len(ips) > 0 && ips[0] != corev1.ClusterIPNone
}

// rawClusterIPs returns clusterIPs, or clusterIP if there are none: files often
// give only the latter, and the API server always sets both.
func rawClusterIPs(spec *corev1.ServiceSpec) []string {
	switch {
	case spec.ClusterIP == corev1.ClusterIPNone:
		return []string{corev1.ClusterIPNone}
	case len(spec.ClusterIPs) > 0:
		return spec.ClusterIPs
	case spec.ClusterIP != "":
		return []string{spec.ClusterIP}
	}
	return nil
}

func clusterIPs(f *faults, spec *corev1.ServiceSpec) []netip.Addr {
	if len(spec.ClusterIPs) == 0 {
		addr, remark := serviceAddr(spec.ClusterIP)
		if remark != "" {
			f.bad(model.WhyBadAddress, "spec.clusterIP", spec.ClusterIP, remark)
			return nil
		}
		if d := decimal(spec.ClusterIP); d != spec.ClusterIP {
			f.bad(model.WhyInvalid, "spec.clusterIP", spec.ClusterIP, "leading zeros, read as "+d)
		}
		return []netip.Addr{addr}
	}
	if spec.ClusterIP != "" && spec.ClusterIP != spec.ClusterIPs[0] {
		f.bad(model.WhyInvalid, "spec.clusterIP", spec.ClusterIP, "differs from clusterIPs[0], which is used")
	}
	return vips(f, "spec.clusterIPs", spec.ClusterIPs)
}

func serviceType(f *faults, t corev1.ServiceType) model.ServiceType {
	switch t {
	case "", corev1.ServiceTypeClusterIP:
		return model.ClusterIP
	case corev1.ServiceTypeNodePort:
		return model.NodePort
	case corev1.ServiceTypeLoadBalancer:
		return model.LoadBalancer
	}
	f.bad(model.WhyInvalid, "spec.type", string(t), "unknown, using ClusterIP")
	return model.ClusterIP
}

func trafficPolicy(f *faults, path, s string) model.TrafficPolicy {
	switch s {
	case "", "Cluster":
		return model.Cluster
	case "Local":
		return model.Local
	}
	f.bad(model.WhyInvalid, path, s, "unknown, using Cluster")
	return model.Cluster
}

func sessionAffinity(f *faults, spec *corev1.ServiceSpec) time.Duration {
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return 0
	case corev1.ServiceAffinityClientIP:
	default:
		f.bad(model.WhyInvalid, "spec.sessionAffinity", string(spec.SessionAffinity), "unknown, using None")
		return 0
	}
	c := spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	const path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
	n := *c.ClientIP.TimeoutSeconds
	switch d := time.Duration(n) * time.Second; {
	case d <= 0:
		f.bad(model.WhyInvalid, path, strconv.Itoa(int(n)), "not within 1..86400, using 10800")
		return defaultAffinity
	case d > maxAffinity:
		f.bad(model.WhyInvalid, path, strconv.Itoa(int(n)), "not within 1..86400, using 86400")
		return maxAffinity
	default:
		return d
	}
}

// loadBalancer converts what only Services of type LoadBalancer have.
func loadBalancer(f *faults, svc *model.Service, s *corev1.Service) {
	ranges := s.Spec.LoadBalancerSourceRanges
	svc.Restricted = len(ranges) > 0
	svc.SourceRanges = prefixes(f, "spec.loadBalancerSourceRanges", ranges)
	svc.LoadBalancerIPs = ingressIPs(f, s.Status.LoadBalancer.Ingress)
	if n := s.Spec.HealthCheckNodePort; n != 0 && svc.External == model.Local {
		port, ok := port16(n)
		if !ok {
			f.bad(model.WhyInvalid, "spec.healthCheckNodePort", strconv.Itoa(int(n)), "not within 1..65535")
		}
		svc.HealthCheckNodePort = port
	}
}

// ingressIPs returns the addresses that a load balancer leaves to the node to
// serve: those it sends with the destination unchanged (KEP-1860). Host names
// and mode Proxy are served elsewhere.
func ingressIPs(f *faults, ingress []corev1.LoadBalancerIngress) []netip.Addr {
	const path = "status.loadBalancer.ingress"
	var addrs model.Unique[netip.Addr]
	for i := range ingress {
		in := &ingress[i]
		if in.IP == "" || in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy {
			continue
		}
		if in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			f.bad(model.WhyInvalid, at(path, i, "ipMode"), string(*in.IPMode), "unknown, address ignored")
			continue
		}
		addr, remark := serviceAddr(in.IP)
		if remark != "" {
			f.bad(model.WhyBadAddress, at(path, i, "ip"), in.IP, remark)
			continue
		}
		f.zeros(path, i, "ip", in.IP)
		addrs.Add(addr)
	}
	return addrs.List()
}

// portKey is what ports of one object differ in.
type portKey struct {
	name  string
	proto model.Proto
}

// servicePorts omits ports that cannot be served. Of two ports with the same name, or
// the same number and protocol, only the first one is used.
func servicePorts(f *faults, t model.ServiceType, list []corev1.ServicePort) []model.ServicePort {
	const path = "spec.ports"
	type number struct {
		port  uint16
		proto model.Proto
	}
	numbers, names := make(map[number]bool, len(list)), make(map[portKey]bool, len(list))
	ports := make([]model.ServicePort, 0, len(list))
	for i := range list {
		p := &list[i]
		port, okPort := port16(p.Port)
		proto, okProto := protocol(string(p.Protocol))
		switch {
		case !okPort:
			f.bad(model.WhyInvalid, at(path, i, "port"), strconv.Itoa(int(p.Port)), "not within 1..65535, port ignored")
		case !okProto:
			f.bad(model.WhyInvalid, at(path, i, "protocol"), string(p.Protocol), "not TCP, UDP or SCTP; port ignored")
		case !portName(p.Name):
			f.bad(model.WhyInvalid, at(path, i, "name"), p.Name, "not a DNS label, port ignored")
		case numbers[number{port, proto}]:
			f.bad(model.WhyInvalid, at(path, i, "port"), strconv.Itoa(int(port))+"/"+proto.String(), "duplicate, the first one is used")
		case names[portKey{p.Name, proto}]:
			f.bad(model.WhyInvalid, at(path, i, "name"), p.Name, "duplicate, the first one is used")
		default:
			numbers[number{port, proto}], names[portKey{p.Name, proto}] = true, true
			ports = append(ports, model.ServicePort{
				Name: intern(p.Name), Proto: proto, Port: port, NodePort: nodePort(f, t, i, p.NodePort),
			})
		}
	}
	return ports
}

func nodePort(f *faults, t model.ServiceType, i int, n int32) uint16 {
	if n == 0 {
		return 0
	}
	path, value := at("spec.ports", i, "nodePort"), strconv.Itoa(int(n))
	if t == model.ClusterIP {
		f.bad(model.WhyInvalid, path, value, "only valid for types NodePort and LoadBalancer")
		return 0
	}
	port, ok := port16(n)
	if !ok {
		f.bad(model.WhyInvalid, path, value, "not within 1..65535")
	}
	return port
}

// Slice converts an EndpointSlice. It returns nil for those that no proxy
// serves: of headless Services, with host names, or without the label that
// names the Service.
func Slice(s *discoveryv1.EndpointSlice) (*model.Slice, []model.Problem) {
	if s == nil || s.Labels[discoveryv1.LabelServiceName] == "" || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, nil
	}
	if _, headless := s.Labels[corev1.IsHeadlessService]; headless {
		return nil, nil
	}
	of := model.ServiceName{Namespace: intern(s.Namespace), Name: intern(s.Labels[discoveryv1.LabelServiceName])}
	f := &faults{kind: "EndpointSlice", meta: &s.ObjectMeta, of: of}
	family, ok := addressType(s.AddressType)
	if !ok {
		f.bad(model.WhyInvalid, "addressType", string(s.AddressType), "not IPv4, IPv6 or FQDN")
		return nil, f.problems()
	}
	weight, weighted := weight(f)
	endpoints, pods := endpoints(f, family, s.Endpoints)
	return &model.Slice{
		Name:      model.SliceName{Namespace: of.Namespace, Name: s.Name},
		Service:   of.Name,
		Family:    family,
		Ports:     slicePorts(f, s.Ports),
		Endpoints: endpoints,
		Pods:      pods,
		Triggered: triggered(s.Annotations[corev1.EndpointsLastChangeTriggerTime]),
		Version:   versionNumber(s.ResourceVersion),
		Weight:    weight,
		Weighted:  weighted,
	}, f.problems()
}

func addressType(t discoveryv1.AddressType) (f model.Family, ok bool) {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return model.IPv4, true
	case discoveryv1.AddressTypeIPv6:
		return model.IPv6, true
	}
	return 0, false
}

// triggered parses the time of the change that led to a slice. It only feeds a
// metric, so an invalid one is ignored.
func triggered(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// slicePorts converts ports. A port without number would mean "all ports",
// which no Service port can refer to.
func slicePorts(f *faults, list []discoveryv1.EndpointPort) []model.SlicePort {
	var names model.Unique[portKey]
	ports := make([]model.SlicePort, 0, len(list))
	for i := range list {
		p, ok := slicePort(f, i, &list[i])
		switch {
		case !ok:
		case !names.Add(portKey{p.Name, p.Proto}):
			f.bad(model.WhyInvalid, at("ports", i, "name"), p.Name, "duplicate, the first one is used")
		default:
			ports = append(ports, p)
		}
	}
	return ports
}

func slicePort(f *faults, i int, p *discoveryv1.EndpointPort) (port model.SlicePort, ok bool) {
	var name, protoName string
	if p.Name != nil {
		name = *p.Name
	}
	if p.Protocol != nil {
		protoName = string(*p.Protocol)
	}
	if p.Port == nil {
		f.add(model.WhyInvalid, at("ports", i, "port"), "missing, port ignored")
		return port, false
	}
	number, okPort := port16(*p.Port)
	proto, okProto := protocol(protoName)
	switch {
	case !okPort:
		f.bad(model.WhyInvalid, at("ports", i, "port"), strconv.Itoa(int(*p.Port)), "not within 1..65535, port ignored")
	case !okProto:
		f.bad(model.WhyInvalid, at("ports", i, "protocol"), protoName, "not TCP, UDP or SCTP; port ignored")
	case !portName(name):
		f.bad(model.WhyInvalid, at("ports", i, "name"), name, "not a DNS label, port ignored")
	default:
		return model.SlicePort{Name: intern(name), Proto: proto, Port: number}, true
	}
	return port, false
}

func endpoints(f *faults, family model.Family, list []discoveryv1.Endpoint) (out []model.SliceEndpoint, pods string) {
	out = make([]model.SliceEndpoint, 0, len(list))
	names := make([]string, 0, len(list))
	var last *model.Hints
	for i := range list {
		e := &list[i]
		if len(e.Addresses) == 0 {
			f.add(model.WhyBadAddress, at("endpoints", i, "addresses"), "empty")
			continue
		}
		addr, remark := serviceAddr(e.Addresses[0])
		if remark == "" && model.FamilyOf(addr) != family {
			remark = "in a slice of " + family.String()
		}
		if remark != "" {
			f.bad(model.WhyBadAddress, at("endpoints", i, "addresses[0]"), e.Addresses[0], remark)
			continue
		}
		f.zeros("endpoints", i, "addresses[0]", e.Addresses[0])
		ep := model.SliceEndpoint{Addr: addr, State: state(&e.Conditions)}
		if e.NodeName != nil {
			ep.Node = intern(*e.NodeName)
		}
		if e.Hints != nil {
			last = hints(f, i, e.Hints, last)
			ep.Hints = last
		}
		out = append(out, ep)
		name := ""
		if r := e.TargetRef; r != nil && r.Kind == "Pod" {
			name = r.Name
		}
		names = append(names, name)
	}
	return out, model.PackPods(names)
}

// state applies the defaults of absent conditions: an endpoint is ready and
// serving unless said otherwise, and not terminating.
func state(c *discoveryv1.EndpointConditions) model.EndpointState {
	var s model.EndpointState
	if c.Ready == nil || *c.Ready {
		s |= model.Ready
	}
	if c.Serving == nil || *c.Serving {
		s |= model.Serving
	}
	if c.Terminating != nil && *c.Terminating {
		s |= model.Terminating
	}
	return s
}

// maxHints is how many zones, and how many nodes, one endpoint can be meant for:
// what an API server admits. They are looked through for each port.
const maxHints = 8

// hints converts the hints of an endpoint. Neighbours in a slice mostly have
// equal ones, which are then shared.
func hints(f *faults, i int, h *discoveryv1.EndpointHints, last *model.Hints) *model.Hints {
	if len(h.ForZones) == 0 && len(h.ForNodes) == 0 {
		return nil
	}
	if last != nil && sameHints(h, last) {
		return last
	}
	if n := max(len(h.ForZones), len(h.ForNodes)); n > maxHints {
		f.bad(model.WhyInvalid, at("endpoints", i, "hints"), strconv.Itoa(n), fmt.Sprintf("more than %d, the rest is ignored", maxHints))
	}
	out := &model.Hints{}
	for _, z := range h.ForZones[:min(len(h.ForZones), maxHints)] {
		out.Zones = append(out.Zones, intern(z.Name))
	}
	for _, n := range h.ForNodes[:min(len(h.ForNodes), maxHints)] {
		out.Nodes = append(out.Nodes, intern(n.Name))
	}
	return out
}

func sameHints(h *discoveryv1.EndpointHints, o *model.Hints) bool {
	return slices.EqualFunc(h.ForZones, o.Zones, func(z discoveryv1.ForZone, s string) bool { return z.Name == s }) &&
		slices.EqualFunc(h.ForNodes, o.Nodes, func(n discoveryv1.ForNode, s string) bool { return n.Name == s })
}

// Limits of the Gateway API that manifests in a folder need not keep.
const (
	maxParents   = 32
	maxBackends  = 16
	maxGrants    = 16
	largestShare = 1_000_000 // weight of a backend
)

// route converts a TCPRoute or a UDPRoute. It returns nil for those without a Service as a parent:
// they are for gateways.
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
