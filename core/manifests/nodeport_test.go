// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

// Ports of the machine itself, such as sshd's and the kubelet's, are not given to
// Services; all else of those works.
func TestNodePortsOfTheMachine(t *testing.T) {
	const text = `apiVersion: v1
kind: Service
metadata: {name: thief, namespace: ns}
spec:
  type: NodePort
  clusterIP: 10.96.0.1
  ports:
  - {name: ssh, port: 22, nodePort: 22}
  - {name: kubelet, port: 10250, nodePort: 10250}
  - {name: web, port: 80, nodePort: 30080}
`
	b := newBench(t)
	b.put("a.yaml", text)
	b.reader.limits.nodePorts = config.Default().NodePortRange
	r, err := b.reader.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Services) != 1 || len(r.Services[0].Ports) != 3 {
		t.Fatalf("Services: %+v", r.Services)
	}
	for i, want := range []uint16{0, 0, 30080} {
		if got := r.Services[0].Ports[i].NodePort; got != want {
			t.Errorf("port %d has node port %d, want %d", i, got, want)
		}
	}
	var said []string
	for _, p := range r.Problems {
		said = append(said, p.String())
	}
	all := strings.Join(said, "\n")
	for _, want := range []string{
		"a.yaml:8", "spec.ports[0].nodePort: 22 is outside 30000-32767 (--service-node-port-range)",
		"a.yaml:9", "spec.ports[1].nodePort: 10250 is outside 30000-32767",
	} {
		if len(said) != 2 || !strings.Contains(all, want) {
			t.Errorf("no %q in:\n%s", want, all)
		}
	}
	if o, err := Read(t.Context(), b.dir, config.PortRange{First: 22, Last: 32767}); err != nil || len(o.Problems) > 0 {
		t.Errorf("a range that has them: %v, %v", o.Problems, err)
	}
}

// The port for health checks of load balancers is a node port, too.
func TestHealthCheckNodePortsOfTheMachine(t *testing.T) {
	const text = `apiVersion: v1
kind: Service
metadata: {name: %s, namespace: ns}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  clusterIP: 10.96.0.%d
  healthCheckNodePort: %d
  ports:
  - {name: web, port: 80, nodePort: 30080}
`
	b := newBench(t)
	b.put("a.yaml", fmt.Sprintf(text, "thief", 1, 10250)+"---\n"+fmt.Sprintf(text, "web", 2, 32000))
	b.reader.limits.nodePorts = config.Default().NodePortRange
	r, err := b.reader.Read(t.Context())
	if err != nil || len(r.Services) != 2 {
		t.Fatalf("%v, %v", r, err)
	}
	if a, b := r.Services[0].HealthCheckNodePort, r.Services[1].HealthCheckNodePort; a != 0 || b != 32000 {
		t.Errorf("health ports %d and %d", a, b)
	}
	const want = "a.yaml:8: Service ns/thief: spec.healthCheckNodePort: 10250 is outside 30000-32767"
	if len(r.Problems) != 1 || !strings.HasPrefix(r.Problems[0].String(), want) {
		t.Errorf("problems: %v", r.Problems)
	}
}
