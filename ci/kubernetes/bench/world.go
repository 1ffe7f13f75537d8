package main

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeName is the node that all proxies play.
const nodeName = "bench"

const (
	namespaces   = 100
	servicePort  = 80
	endpointPort = 8080
)

// pods holds the addresses of all endpoints.
var pods = netip.MustParsePrefix("10.128.0.0/9")

// world is a cluster of Services, at most 40,000, with some endpoints each.
type world struct{ services, endpoints int }

func (w world) String() string {
	return fmt.Sprintf("%d Services x %d endpoints", w.services, w.endpoints)
}

func namespace(i int) string { return fmt.Sprintf("team-%d", i%namespaces) }

func name(i int) string { return fmt.Sprintf("service-%d", i) }

// vip returns where a Service answers.
func (w world) vip(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 16 + byte(i>>8), byte(i)}), servicePort)
}

// generations is how many pods replace each other in one place.
const generations = 2

// pod returns the address of an endpoint in some generation.
func (w world) pod(service, endpoint, generation int) netip.Addr {
	n := service*w.endpoints + endpoint
	return netip.AddrFrom4([4]byte{10, 128 + byte(n>>16) + byte(generation%generations)*64, byte(n >> 8), byte(n)})
}

// generation tells of which generation an endpoint is.
func generation(pod netip.Addr) int { return int(pod.As4()[1]-128) / 64 }

func (w world) service(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: name(i), Labels: map[string]string{"app": name(i)}},
		Spec: corev1.ServiceSpec{
			ClusterIP: w.vip(i).Addr().String(), Selector: map[string]string{"app": name(i)},
			Ports: []corev1.ServicePort{{Name: "http", Port: servicePort}},
		},
	}
}

func (w world) slice(i, generation int) *discoveryv1.EndpointSlice {
	port, name, yes, no := int32(endpointPort), "http", true, false
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace(i), Name: fmt.Sprintf("service-%d-abcde", i),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
	for e := range w.endpoints {
		node := fmt.Sprintf("node-%d", (i+e)%200)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{w.pod(i, e, generation).String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace(i), Name: fmt.Sprintf("service-%d-%d-%d", i, e, generation)},
		})
	}
	return s
}
