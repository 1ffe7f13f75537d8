package wine

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/hnsemu"
)

// replaceOne counts what one changed endpoint costs the real program.
func (n *node) replaceOne(t *testing.T) {
	n.rest()
	n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1", "10.244.2.9=node-2"))
	n.serves("10.96.0.10", "10.244.1.2 10.244.2.9")
	calls := n.rest()
	t.Logf("an endpoint replaced: %d calls, %v", len(calls), count(calls))
	if len(calls) > 8 || len(n.emu.Gaps()) > 0 {
		t.Errorf("%d calls, gaps %v", len(calls), n.emu.Gaps())
	}
}

// restart ends the program one way or another and starts it again.
func (n *node) restart(t *testing.T, how func(*os.Process) error) {
	n.stop(how)
	n.rest()
	n.start()
	eventually(t, "it has read HNS", func() bool { return n.emu.Calls("HcnEnumerateLoadBalancers") > 0 })
	n.serves("10.96.0.10", "10.244.1.2 10.244.2.9")
	calls := n.rest()
	t.Logf("a restart: %d calls", len(calls))
	for _, c := range calls {
		if c.Verb == hnsemu.Create || c.Verb == hnsemu.Modify || c.Verb == hnsemu.Delete {
			t.Errorf("a restart on what is right wrote: %s %s", c.Name, c.Text)
		}
	}
	if g := n.emu.Gaps(); len(g) > 0 {
		t.Errorf("gaps: %v", g)
	}
}

// hnsDown stops HNS under the program, changes a Service, and starts it again.
func (n *node) hnsDown(t *testing.T) {
	n.rest()
	n.emu.Down(true)
	n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.3=node-1", "10.244.2.9=node-2"))
	eventually(t, "it has noticed", func() bool { return strings.Contains(n.log.String(), "HNS does not answer") })
	n.emu.Down(false)
	n.serves("10.96.0.10", "10.244.1.3 10.244.2.9")
	if g := n.emu.Gaps(); len(g) > 0 {
		t.Errorf("gaps: %v", g)
	}
}

// sameCalls compares the calls of the program, through the library and the DLLs,
// with those of the emulator's own client, by which all other tests run.
func (n *node) sameCalls(t *testing.T) {
	client := n.emu.Client()
	n.rest()
	n.write("new.yaml", service("new", "10.96.0.12", 8080, "10.244.1.2=node-1", "10.244.2.3=node-2"))
	n.serves("10.96.0.12", "10.244.1.2 10.244.2.3")
	real := count(n.rest())
	lb := n.emu.Balancers()[len(n.emu.Balancers())-1]
	lb.FrontendVIPs = []string{"10.96.0.13"}
	n.emu.Forget()
	made, err := client.CreateBalancer(lb)
	if err != nil {
		t.Fatal(err)
	}
	if emulated := count(n.emu.Log()); !maps.Equal(real, emulated) {
		t.Errorf("a load balancer takes the program %v and the client %v", real, emulated)
	}
	if err := client.DeleteBalancer(made.ID); err != nil {
		t.Fatal(err)
	}
	n.remove("new.yaml")
	n.serves("10.96.0.12", "")
}

// rest waits until no calls are made any more, and returns those since the last
// time.
func (n *node) rest() []hnsemu.Call {
	n.Helper()
	for before := -1; before != n.emu.Calls(); time.Sleep(300 * time.Millisecond) {
		before = n.emu.Calls()
	}
	defer n.emu.Forget()
	return n.emu.Log()
}

func count(calls []hnsemu.Call) map[string]int {
	by := map[string]int{}
	for _, c := range calls {
		by[c.Name]++
	}
	return by
}

const nodeManifest = `apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDR: 10.244.1.0/24}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
`

// service is a Service with its slice; endpoints are "address=node".
func service(name, vip string, port int, endpoints ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: default}
spec: {type: ClusterIP, clusterIP: %[2]s, clusterIPs: [%[2]s], ports: [{name: p, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-a, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: p, port: %[3]d}]
endpoints:
`, name, vip, port)
	for _, e := range endpoints {
		addr, node, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "- {addresses: [%s], nodeName: %s, conditions: {ready: true}}\n", addr, node)
	}
	return b.String()
}
