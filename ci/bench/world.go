// Command bench measures what README.md claims. Every figure is printed as it
// was measured, misses included.
package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// nodeName is the node that the benchmarks play.
const nodeName = "bench"

// world is a cluster of n Services with some endpoints each.
type world struct {
	services, endpoints int
	udp                 bool
}

func (w world) proto() model.Proto {
	if w.udp {
		return model.UDP
	}
	return model.TCP
}

func (w world) serviceIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 100 + byte(i>>16), byte(i >> 8), byte(i)})
}

// endpointIP returns the address of an endpoint; generations are the pods that
// replace each other in one place.
func (w world) endpointIP(service, endpoint, generation int) netip.Addr {
	n := service*w.endpoints + endpoint
	return netip.AddrFrom4([4]byte{10, 128 + byte(n>>16) + byte(generation%2)*64, byte(n >> 8), byte(n)})
}

func (w world) name(i int) model.ServiceName {
	return model.ServiceName{Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d", i)}
}

func (w world) service(i int) *model.Service {
	return &model.Service{
		Name: w.name(i), ClusterIPs: []netip.Addr{w.serviceIP(i)},
		Ports: []model.ServicePort{{Name: "http", Proto: w.proto(), Port: 80}},
	}
}

// slice returns the endpoints of a Service; the first `replaced` of them are of
// the given generation.
func (w world) slice(i, replaced, generation int) *model.Slice {
	n := w.name(i)
	s := &model.Slice{
		Name: model.SliceName{Namespace: n.Namespace, Name: n.Name + "-abcde"}, Service: n.Name,
		Ports: []model.SlicePort{{Name: "http", Proto: w.proto(), Port: 8080}},
	}
	for e := range w.endpoints {
		g := 0
		if e < replaced {
			g = generation
		}
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{
			Addr: w.endpointIP(i, e, g), Node: fmt.Sprintf("node-%d", (i+e)%200), State: model.Ready | model.Serving,
		})
	}
	return s
}

// manifest returns a Service and its slice as YAML.
func (w world) manifest(b *strings.Builder, i int) {
	n := w.name(i)
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
`, n.Namespace, n.Name, w.serviceIP(i))
	for e := range w.endpoints {
		fmt.Fprintf(b, "- {addresses: [%s], conditions: {ready: true, serving: true, terminating: false}, nodeName: node-%d}\n", w.endpointIP(i, e, 0), (i+e)%200)
	}
	b.WriteString("---\n")
}

// write puts the world into a folder, a hundred Services to a file.
func (w world) write(dir string) error {
	for from := 0; from < w.services; from += 100 {
		var b strings.Builder
		for i := from; i < min(from+100, w.services); i++ {
			w.manifest(&b, i)
		}
		if err := os.WriteFile(fmt.Sprintf("%s/services-%05d.yaml", dir, from), []byte(b.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}
