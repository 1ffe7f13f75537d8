// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
)

// Service is watch.Service the other way round. It leaves out what annotations say.
func Service(s *model.Service) *corev1.Service {
	policy := map[model.TrafficPolicy]string{model.Cluster: "Cluster", model.Local: "Local"}
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name}}
	if !s.Created.IsZero() {
		o.CreationTimestamp = metav1.NewTime(s.Created)
	}
	p := &o.Spec
	p.Type = map[model.ServiceType]corev1.ServiceType{
		model.ClusterIP: corev1.ServiceTypeClusterIP, model.NodePort: corev1.ServiceTypeNodePort, model.LoadBalancer: corev1.ServiceTypeLoadBalancer,
	}[s.Type]
	p.ClusterIPs = text(s.ClusterIPs)
	p.ClusterIP = p.ClusterIPs[0]
	p.ExternalIPs = text(s.ExternalIPs)
	p.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(policy[s.External])
	p.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicy(policy[s.Internal]))
	if s.SessionAffinity > 0 {
		p.SessionAffinity = corev1.ServiceAffinityClientIP
		p.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(s.SessionAffinity / time.Second))}}
	}
	for _, a := range s.LoadBalancerIPs {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	if s.Restricted {
		p.LoadBalancerSourceRanges = append(text(s.SourceRanges), "invalid")[:max(1, len(s.SourceRanges))]
	}
	if s.External == model.Local {
		p.HealthCheckNodePort = int32(s.HealthCheckNodePort)
	}
	for _, x := range s.Ports {
		p.Ports = append(p.Ports, corev1.ServicePort{Name: x.Name, Protocol: protocol(x.Proto), Port: int32(x.Port), NodePort: int32(x.NodePort)})
	}
	return o
}

// Slice is watch.Slice the other way round. It leaves out what annotations say.
func Slice(s *model.Slice) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name, Labels: map[string]string{discoveryv1.LabelServiceName: s.Service}},
		AddressType: map[model.Family]discoveryv1.AddressType{model.IPv4: discoveryv1.AddressTypeIPv4, model.IPv6: discoveryv1.AddressTypeIPv6}[s.Family],
	}
	for _, p := range s.Ports {
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: new(protocol(p.Proto)), Port: new(int32(p.Port))})
	}
	for _, e := range s.Endpoints {
		x := discoveryv1.Endpoint{Addresses: []string{e.Addr.String()}, Conditions: discoveryv1.EndpointConditions{
			Ready: new(e.State.Has(model.Ready)), Serving: new(e.State.Has(model.Serving)), Terminating: new(e.State.Has(model.Terminating)),
		}}
		if e.Node != "" {
			x.NodeName = &e.Node
		}
		if e.Hints != nil {
			x.Hints = &discoveryv1.EndpointHints{}
			for _, z := range e.Hints.Zones {
				x.Hints.ForZones = append(x.Hints.ForZones, discoveryv1.ForZone{Name: z})
			}
			for _, n := range e.Hints.Nodes {
				x.Hints.ForNodes = append(x.Hints.ForNodes, discoveryv1.ForNode{Name: n})
			}
		}
		o.Endpoints = append(o.Endpoints, x)
	}
	return o
}

func text[T interface{ String() string }](all []T) (texts []string) {
	for _, x := range all {
		texts = append(texts, x.String())
	}
	return texts
}

func protocol(p model.Proto) corev1.Protocol {
	return map[model.Proto]corev1.Protocol{model.TCP: corev1.ProtocolTCP, model.UDP: corev1.ProtocolUDP, model.SCTP: corev1.ProtocolSCTP}[p]
}
