// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// hostileSite is a failoverSite with a hostile namespace beside the victim's: two clients, and a pod
// that has all addresses of 10.245.0.0/16, answers on them, and then does not.
type hostileSite struct {
	*failoverSite
	clients []netip.Addr
	pit     netip.Addr
}

func newHostileSite(t *testing.T, mode string) *hostileSite {
	t.Helper()
	h := &hostileSite{pit: netip.MustParseAddr("10.244.9.2")}
	for i := range 2 {
		h.clients = append(h.clients, netip.MustParseAddr(fmt.Sprintf("10.244.1.%d", 200+i)))
	}
	more := append(slices.Clone(h.clients), h.pit)
	f := newFailoverSiteWith(t, more, "--proxy-mode", mode, "--endpoint-failover", "on")
	h.failoverSite = f
	f.works(mode)
	if _, err := f.net.Serve(lab.Place(h.pit.String()), netip.MustParseAddrPort("0.0.0.0:8080"), model.TCP); err != nil {
		t.Fatal(err)
	}
	f.must("ip", "route", "add", "10.245.0.0/16", "via", h.pit.String(), "dev", fmt.Sprintf("pod%d", len(f.pods)+len(f.remote)+len(more)-1), "onlink")
	h.at(h.pit, "ip", "route", "add", "local", "10.245.0.0/16", "dev", "lo")
	return h
}

// at runs a command in a pod.
func (h *hostileSite) at(pod netip.Addr, name string, args ...string) {
	h.t.Helper()
	cmd := exec.Command(name, args...)
	if err := h.net.Do(lab.Place(pod.String()), cmd.Run); err != nil {
		h.t.Fatalf("%s %v: %v", name, args, err)
	}
}

// evil is a Service of the hostile namespace with endpoints, as YAML.
func evil(n int, endpoints []string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: trap-%[1]d, namespace: evil}
spec:
  clusterIP: 10.96.66.%[1]d
  ports: [{name: http, protocol: TCP, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: trap-%[1]d-1, namespace: evil, labels: {kubernetes.io/service-name: trap-%[1]d}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
%[2]s
`, n, strings.Join(endpoints, "\n"))
}

// dead are dead addresses, each on a node by its EndpointSlice.
func dead(n, first int, node func(i int) string) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("- {addresses: [10.245.%d.%d], nodeName: %s}", (first+i)/250, 1+(first+i)%250, node(i)))
	}
	return all
}

// attack has the hostile clients connect to Services of theirs, evenly, until stop is called. They are impatient.
func (h *hostileSite) attack(perSecond, services int) (stop func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			all.Go(func() {
				to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 66, byte(1 + n%services)}), 80)
				_, _ = h.net.Dial(lab.Call{From: lab.Place(h.clients[n/services%2].String()), Proto: model.TCP, To: to, Timeout: 300 * time.Millisecond})
			})
		}
	})
	return func() {
		close(done)
		all.Wait()
	}
}

// unharmed demands that every endpoint of the victim has its share, or none where it is unreachable, and that no
// connection fails.
func (h *hostileSite) unharmed(what string, d time.Duration, unreachable ...netip.Addr) {
	h.t.Helper()
	begin := time.Now()
	all := h.connect(100, d, h.byPod)
	var shares []string
	for _, a := range h.remote {
		s := share(all, a, begin)
		shares = append(shares, fmt.Sprintf("%.0f %%", 100*s))
		if out := slices.Contains(unreachable, a); out != (s == 0) || !out && s < goalShare {
			h.t.Errorf("%s: %s has %.0f %% of the connections", what, a, 100*s)
		}
	}
	h.t.Logf("%s: %d connections, %d failed, p99 %s, shares %s", what, len(all), failures(all), percentile(all, 0.99).Round(time.Microsecond), strings.Join(shares, ", "))
	if failures(all) > 0 {
		h.t.Errorf("%s: %d of %d connections failed%s", what, failures(all), len(all), failed(all, begin))
	}
}

// TestHostileNamespace has another namespace attack a victim by what it sends, and what it writes into its own
// objects. The victim's shares stay, and when one of its endpoints really dies, that is noticed as without.
func TestHostileNamespace(t *testing.T) {
	onNodes := func(i int) string { return fmt.Sprint("node-", 2+i%remoteNodes) }
	for _, c := range []struct {
		name     string
		services func(h *hostileSite) []string
		prepare  func(h *hostileSite) // once all are served, and have answered
		quiet    time.Duration        // that the victim is hardly used before its shares are counted
		podsOnly bool                 // the policy of its first endpoint allows pods alone, no nodes
		dies     bool                 // then one of the victim's endpoints does
	}{
		{
			name: "dead endpoints on the victim's nodes",
			services: func(*hostileSite) []string {
				return []string{evil(1, dead(20, 0, onNodes)), evil(2, dead(200, 20, func(int) string { return "node-2" }))}
			},
		},
		{
			name:     "SYNs that a victim with a policy drops",
			quiet:    4 * time.Second,
			podsOnly: true,
			services: func(h *hostileSite) []string {
				return []string{evil(1, []string{fmt.Sprintf("- {addresses: [%s], nodeName: node-2}", h.remote[0])})}
			},
			prepare: func(h *hostileSite) {
				h.nft(h.remote[0], fmt.Sprintf("table inet drops { chain in { type filter hook prerouting priority -400; ip saddr { %s, %s } drop; }; }", h.clients[0], h.clients[1]))
			},
		},
		{
			name: "invented nodes with dead addresses, and a death",
			services: func(*hostileSite) []string {
				return []string{
					evil(1, dead(101, 0, func(int) string { return "made-up-1" })), evil(2, dead(101, 101, func(int) string { return "made-up-2" })),
					evil(3, dead(150, 202, func(i int) string { return fmt.Sprint("a-", i) })),
				}
			},
			dies: true,
		},
		{
			name: "the victim's addresses in EndpointSlices that change, and a death",
			services: func(h *hostileSite) []string {
				var all []string
				for _, a := range h.remote {
					all = append(all, fmt.Sprintf("- {addresses: [%s], nodeName: made-up}", a))
				}
				return []string{evil(1, all)}
			},
			dies: true,
		},
	} {
		for _, mode := range failoverModes() {
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				h := newHostileSite(t, mode)
				services := c.services(h)
				manifest := h.manifest() + strings.Join(services, "")
				h.put(manifest)
				if c.podsOnly {
					h.nft(h.remote[0], fmt.Sprintf("table inet nodes { chain in { type filter hook prerouting priority -300; ip saddr %s drop; }; }", nodeIP))
				}
				begin := time.Now()
				h.start()
				stop := h.attack(100, len(services))
				defer func() { stop() }()
				h.connect(100, 2*time.Second, h.byPod)
				h.nft(h.pit, "table inet pit { chain in { type filter hook prerouting priority -400; ip daddr 10.245.0.0/16 drop; }; }")
				if c.prepare != nil {
					c.prepare(h)
				}
				if c.quiet > 0 {
					h.connect(2, c.quiet, h.byPod)
				}
				if c.podsOnly && mode == "userspace" {
					// Relays connect from the node's address, as kube-proxy's did: to this policy every client is the
					// node, and gets another endpoint. To one that allows nodes the attackers are the node, too.
					h.unharmed("a policy that drops relays", 5*time.Second, h.remote[0])
					h.nft(h.remote[0], "delete table inet nodes")
				}
				h.unharmed("under attack", 5*time.Second)
				if at, found := h.said(passedOver, begin); found && c.podsOnly {
					t.Errorf("an endpoint was ejected after %s", at.Sub(begin))
				}
				if !c.dies {
					return
				}
				h.silence(true, 2)
				died := time.Now()
				changes := make(chan struct{})
				var writer sync.WaitGroup
				writer.Go(func() { // whatever it says of the dead address now
					for n := 0; ; n++ {
						select {
						case <-changes:
							return
						case <-time.After(200 * time.Millisecond):
							h.put(manifest + evil(250, []string{fmt.Sprintf("- {addresses: [%s], nodeName: w-%d}", h.remote[2], n)}))
						}
					}
				})
				all := h.connect(100, 6*time.Second, h.byPod)
				close(changes)
				writer.Wait()
				at, found := h.said(passedOver, died)
				late := 0
				for _, a := range all {
					if a.server == h.remote[2] || a.began.Sub(died) > 3*time.Second && a.took > 900*time.Millisecond {
						late++
					}
				}
				t.Logf("a death: %d connections, %d failed, p99 %s; ejected after %s, found %t; %d waited later than 3 s after it", len(all), failures(all), percentile(all, 0.99), at.Sub(died), found, late)
				if failures(all) > 0 || late > 0 {
					t.Errorf("%d of %d connections failed, %d waited though the endpoint was known to be dead%s", failures(all), len(all), late, failed(all, died))
				}
			})
		}
	}
}
