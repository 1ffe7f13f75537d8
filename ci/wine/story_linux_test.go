// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// replaceOne counts what one changed endpoint costs the real program.
func (n *node) replaceOne(t *testing.T) {
	n.rest()
	n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1", "10.244.2.9=node-2"))
	n.serves("10.96.0.10", "10.244.1.2 10.244.2.9")
	calls := n.rest()
	t.Logf("an endpoint replaced: %d calls, %v", len(calls), count(calls))
	if len(calls) > 8 || len(n.emu.Outages()) > 0 {
		t.Errorf("%d calls, gaps %v", len(calls), n.emu.Outages())
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
			t.Errorf("a restart on correct rules wrote: %s %s", c.Name, c.Text)
		}
	}
	if g := n.emu.Outages(); len(g) > 0 {
		t.Errorf("gaps: %v", g)
	}
}

// hnsDown stops HNS under the program, changes a Service, and starts it again.
func (n *node) hnsDown(t *testing.T) {
	n.rest()
	n.whileDown(func() {
		n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.3=node-1", "10.244.2.9=node-2"))
	})
	n.serves("10.96.0.10", "10.244.1.3 10.244.2.9")
	if g := n.emu.Outages(); len(g) > 0 {
		t.Errorf("gaps: %v", g)
	}
}

// hnsLoses lets HNS come back without load balancers and remote endpoints
// (kubernetes#110849).
func (n *node) hnsLoses() {
	n.rest()
	n.whileDown(func() {
		for _, lb := range n.emu.Balancers() {
			n.emu.Remove(lb.ID)
		}
		for _, e := range n.emu.Endpoints() {
			if e.Flags&hns.FlagRemote != 0 {
				n.emu.Remove(e.ID)
			}
		}
		n.write("lost.yaml", service("lost", "10.96.0.14", 8080, "10.244.2.9=node-2"))
	})
	n.serves("10.96.0.14", "10.244.2.9")
	n.serves("10.96.0.10", "10.244.1.3 10.244.2.9")
	n.serves("10.96.0.11", "10.244.2.3")
	n.remove("lost.yaml")
	n.serves("10.96.0.14", "")
	n.rest()
}

// whileDown does something while HNS is down, and waits until the program has
// noticed that.
func (n *node) whileDown(do func()) {
	n.Helper()
	const complaint = "HNS is unavailable"
	before := strings.Count(n.log.String(), complaint)
	n.emu.Down(true)
	do()
	eventually(n, "it has noticed", func() bool { return strings.Count(n.log.String(), complaint) > before })
	n.emu.Down(false)
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
	lb.ID, lb.FrontendVIPs = "", []string{"10.96.0.13"} // an ID in use is refused
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

// hns runs the program's own hns commands while the proxy runs.
func (n *node) hns(t *testing.T) {
	n.rest()
	said, err := finish(n.tandem("hns", "diff"))
	if err != nil || !strings.Contains(string(said), " 0 differences") {
		t.Errorf("hns diff: %v\n%s", err, said)
	}
	first := n.emu.Balancers()[0]
	n.emu.Change(first.ID, func(lb *hns.LoadBalancer) { lb.SourceVIP = "10.0.0.9" })
	said, err = finish(n.tandem("hns", "diff"))
	if exit := (&exec.ExitError{}); !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(string(said), ": 4 objects wanted, 1 difference\n") {
		t.Errorf("hns diff: %v\n%s", err, said)
	}
	n.emu.Change(first.ID, func(lb *hns.LoadBalancer) { lb.SourceVIP = first.SourceVIP })
	dump := n.tandem("hns", "dump", "-o", "json")
	dump.Stderr = &n.log
	said, err = finish(dump)
	var d hns.Dump
	if err != nil || json.Unmarshal(said, &d) != nil || d.Network != "cbr0" || len(d.Objects) != len(n.emu.Endpoints())+len(n.emu.Balancers()) {
		t.Errorf("hns dump: %v\n%s", err, said)
	}
	for _, c := range n.rest() {
		if c.Verb == hnsemu.Create || c.Verb == hnsemu.Modify || c.Verb == hnsemu.Delete {
			t.Errorf("looking has written: %s", c.Name)
		}
	}
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
