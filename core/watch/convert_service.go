// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-proxy/tandem/core/model"
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

// servicePorts omits ports that cannot be served. Of two ports with the same name, or
// the same number and protocol, only the first one is used.
func servicePorts(f *faults, t model.ServiceType, list []corev1.ServicePort) []model.ServicePort {
	const path = "spec.ports"
	type number struct {
		port  uint16
		proto model.Proto
	}
	type name struct {
		name  string
		proto model.Proto
	}
	numbers, names := make(map[number]bool, len(list)), make(map[name]bool, len(list))
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
		case names[name{p.Name, proto}]:
			f.bad(model.WhyInvalid, at(path, i, "name"), p.Name, "duplicate, the first one is used")
		default:
			numbers[number{port, proto}], names[name{p.Name, proto}] = true, true
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
