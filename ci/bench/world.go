// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeName is the node that all proxies play, nodeIP its address, and podCIDR
// the range of addresses that counts as pods.
const (
	nodeName = "bench"
	podCIDR  = "10.244.0.0/16"
)

var nodeIP = netip.MustParseAddr("192.0.2.1")

const (
	namespaces   = 100
	servicePort  = 80
	endpointPort = 8080
)

// pods holds the addresses of all endpoints.
var pods = netip.MustParsePrefix("10.128.0.0/9")

// world is a cluster of Services, at most 900,000, with some endpoints each.
type world struct {
	services, endpoints int
	ports               int // of each Service; 0 is one
	udp, affinity       bool
}

func (w world) String() string {
	text := fmt.Sprintf("%d Services x %d endpoints", w.services, w.endpoints)
	if w.ports > 1 {
		text += fmt.Sprintf(" x %d ports", w.ports)
	}
	if w.affinity {
		text += ", affine"
	}
	return text
}

func (w world) protocol() corev1.Protocol {
	if w.udp {
		return corev1.ProtocolUDP
	}
	return corev1.ProtocolTCP
}

// lowerProtocol is the protocol as iptables has it.
func (w world) lowerProtocol() string { return strings.ToLower(string(w.protocol())) }

func namespace(i int) string { return fmt.Sprintf("team-%d", i%namespaces) }

func name(i int) string { return fmt.Sprintf("service-%d", i) }

// vip returns where a Service answers.
func (w world) vip(i int) netip.AddrPort {
	n := i + 16<<8
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96 + byte(n>>16), byte(n >> 8), byte(n)}), servicePort)
}

// generations is how many pods replace each other in one place.
const generations = 2

// pod returns the address of an endpoint in some generation.
func (w world) pod(service, endpoint, generation int) netip.Addr {
	n := service*w.endpoints + endpoint
	return netip.AddrFrom4([4]byte{10, 128 + byte(n>>16) + byte(generation%generations)*64, byte(n >> 8), byte(n)})
}

// generation returns the generation of an endpoint.
func generation(pod netip.Addr) int { return int(pod.As4()[1]-128) / 64 }

// otherNode is where an endpoint is.
func otherNode(i, endpoint int) string { return fmt.Sprintf("node-%d", (i+endpoint)%200) }

func (w world) service(i int) *corev1.Service {
	vip := w.vip(i).Addr().String()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: name(i), Labels: map[string]string{"app": name(i)}},
		Spec: corev1.ServiceSpec{
			ClusterIP: vip, ClusterIPs: []string{vip}, Selector: map[string]string{"app": name(i)},
			Ports: []corev1.ServicePort{{Name: "http", Port: servicePort, Protocol: w.protocol()}},
		},
	}
	for n := 1; n < w.ports; n++ {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("http-%d", n), Port: servicePort + int32(n), Protocol: w.protocol()})
	}
	if w.affinity {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	return s
}

// slice returns the endpoints of a Service; the first `replaced` of them are of
// the given generation.
func (w world) slice(i, replaced, generation int) *discoveryv1.EndpointSlice {
	port, name, protocol, yes, no := int32(endpointPort), "http", w.protocol(), true, false
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace(i), Name: fmt.Sprintf("service-%d-abcde", i),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for n := 1; n < w.ports; n++ {
		port, name := int32(endpointPort+n), fmt.Sprintf("http-%d", n)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &protocol})
	}
	for e := range w.endpoints {
		g, node := 0, otherNode(i, e)
		if e < replaced {
			g = generation
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{w.pod(i, e, g).String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace(i), Name: fmt.Sprintf("service-%d-%d-%d", i, e, g)},
		})
	}
	return s
}

// node returns the node that all proxies play.
func node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIP.String()}}},
	}
}

// manifest returns a Service and its slice of a generation as YAML, shorter than kubectl's.
func (w world) manifest(b *strings.Builder, i, generation int) {
	fmt.Fprintf(b, `apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  clusterIP: %[3]s
  clusterIPs: [%[3]s]
  selector: {app: %[2]s}
  ports: [{name: http, protocol: TCP, port: 80, targetPort: http}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[2]s-abcde, namespace: %[1]s, labels: {kubernetes.io/service-name: %[2]s}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
`, namespace(i), name(i), w.vip(i).Addr())
	for e := range w.endpoints {
		fmt.Fprintf(b, "- {addresses: [%s], conditions: {ready: true, serving: true, terminating: false}, nodeName: %s}\n", w.pod(i, e, generation), otherNode(i, e))
	}
	b.WriteString("---\n")
}

// write puts the world into a folder, a hundred Services to a file.
func (w world) write(dir string) error {
	for from := 0; from < w.services; from += 100 {
		var b strings.Builder
		for i := from; i < min(from+100, w.services); i++ {
			w.manifest(&b, i, 0)
		}
		if err := os.WriteFile(fmt.Sprintf("%s/services-%05d.yaml", dir, from), []byte(b.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}
