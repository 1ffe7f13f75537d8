// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// town is a proxy in a namespace, and a load balancer outside of it.
type town struct {
	t   *testing.T
	net *netns.Net
	dir string
}

func newTown(t *testing.T, change func(*config.Config)) *town {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	addrs := func(all ...string) (as []netip.Addr) {
		for _, a := range all {
			as = append(as, netip.MustParseAddr(a))
		}
		return as
	}
	n, err := netns.New(t.Context(), netns.Plan{Node: addrs("192.0.2.1", "192.0.2.2", "2001:db8::1"), Outside: addrs("192.0.2.100", "2001:db8::100")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	town := &town{t, n, t.TempDir()}
	c := config.Default()
	c.Manifests, c.NodeName, c.HealthAddress = town.dir, "n1", "0.0.0.0:10256"
	if change != nil {
		change(&c)
	}
	var p *platform.Proxy
	if err := n.Do(netns.Node, func() (err error) {
		if err = platform.Modes()[0].Probe(t.Context()); err != nil {
			t.Skipf("no proxy can be opened here: %v", err)
		}
		p, err = platform.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return town
}

// write replaces a manifest as a whole.
func (t *town) write(name, text string) {
	t.t.Helper()
	tmp := filepath.Join(t.dir, "."+name)
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		t.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(t.dir, name)); err != nil {
		t.t.Fatal(err)
	}
}

// ask asks over HTTP from a place.
func (t *town) ask(from netns.Place, at, path string) (code int, header http.Header, body []byte, err error) {
	err = t.net.Do(from, func() error {
		conn, err := net.DialTimeout("tcp", at, 2*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, at); err != nil {
			return err
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		code, header = res.StatusCode, res.Header
		body, err = io.ReadAll(res.Body)
		return err
	})
	return code, header, body, err
}

// expect waits until a place gets an answer with this code and weight.
func (t *town) expect(what, at, path string, code int, weight string) {
	t.t.Helper()
	var got string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		c, header, body, err := t.ask(netns.Outside, at, path)
		if err == nil && c == code && header.Get("X-Load-Balancing-Endpoint-Weight") == weight {
			return
		}
		got = fmt.Sprint(c, header, string(body), err)
	}
	t.t.Errorf("%s: %s%s answers %s; want %d, weight %q", what, at, path, got, code, weight)
}

func endpoints(node string) string {
	var b strings.Builder
	for family, addresses := range map[string][2]string{"IPv4": {"10.0.0.1", "10.0.0.2"}, "IPv6": {"fd00::1", "fd00::2"}} {
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%s, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: %s
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [%q], nodeName: %s}
- {addresses: [%q], nodeName: elsewhere}
`, strings.ToLower(family), family, addresses[0], node, addresses[1])
	}
	return b.String()
}

const web = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:96::10"]
  ipFamilies: [IPv4, IPv6]
  externalTrafficPolicy: Local
  healthCheckNodePort: 32080
  ports: [{name: http, port: 80, nodePort: 30080}]
`

const leaving = `apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}
`

// What load balancers ask a node, on real sockets, from the start of the proxy
// to the end of the node.
func TestLoadBalancersAreAnswered(t *testing.T) {
	town := newTown(t, nil)
	town.write("web.yaml", web)
	town.write("slices.yaml", endpoints("n1"))
	town.expect("programmed", "192.0.2.1:10256", "/healthz", 200, "")
	town.expect("programmed, IPv6", "[2001:db8::1]:10256", "/livez", 200, "")
	for _, at := range []string{"192.0.2.1:32080", "192.0.2.2:32080", "[2001:db8::1]:32080"} {
		town.expect("one endpoint here", at, "/", 200, "1")
	}
	town.write("slices.yaml", endpoints("elsewhere"))
	town.expect("the endpoint moved away", "192.0.2.1:32080", "/", 503, "0")
	town.expect("the endpoint moved away, IPv6", "[2001:db8::1]:32080", "/", 503, "0")
	town.write("slices.yaml", endpoints("n1"))
	town.write("node.yaml", leaving)
	town.expect("the node leaves", "192.0.2.1:10256", "/healthz", 503, "")
	town.expect("the node leaves, and lives", "192.0.2.1:10256", "/livez", 200, "")
	town.expect("the node leaves, and serves", "192.0.2.1:32080", "/", 200, "1")
	_, _, body, err := town.ask(netns.Node, "127.0.0.1:10249", "/metrics")
	for _, line := range []string{
		`kubeproxy_proxy_livez_total{code="200"} `, `kubeproxy_proxy_healthz_total{code="503"} `, `tandem_services{state="Programmed"} 1`,
		`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} `, `tandem_events_total{outcome="written"} 1`,
	} {
		if err != nil || !strings.Contains(string(body), line) {
			t.Errorf("%q is missing (%v)", line, err)
		}
	}
	_, _, body, err = town.ask(netns.Node, "127.0.0.1:10249", "/status")
	var doc struct {
		Healthy bool
		Reasons []string
	}
	if err != nil || json.Unmarshal(body, &doc) != nil || !doc.Healthy || len(doc.Reasons) != 1 {
		t.Errorf("status %+v: %v", doc, err)
	}
}

// Health checks are where node ports are, and nowhere else.
func TestHealthChecksKeepToNodePortAddresses(t *testing.T) {
	for prefix, name := range map[string]string{"192.0.2.1/32": "an address", "192.0.2.0/31": "a prefix"} {
		t.Run(name, func(t *testing.T) {
			town := newTown(t, func(c *config.Config) {
				c.NodePorts.Prefixes = []netip.Prefix{netip.MustParsePrefix(prefix)}
			})
			town.write("web.yaml", web)
			town.write("slices.yaml", endpoints("n1"))
			town.expect("inside", "192.0.2.1:32080", "/", 200, "1")
			if code, _, _, err := town.ask(netns.Outside, "192.0.2.2:32080", "/"); err == nil {
				t.Errorf("outside: %d", code)
			}
		})
	}
}
