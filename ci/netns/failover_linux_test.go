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

// failoverSite is a lab in which each of five endpoints is on a node of its own, three
// pods are clients of the cluster IP, and three machines of the node port.
type failoverSite struct {
	*site
	remote, pods, outside []netip.Addr
}

const remoteNodes = 5

func newFailoverSite(t *testing.T, flags ...string) *failoverSite {
	t.Helper()
	if err := lab.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skipf("nodes are silenced with nft: %v", err)
	}
	bin, err := building()
	if err != nil {
		t.Fatal(err)
	}
	f := &failoverSite{site: &site{t: t, bin: bin, dir: t.TempDir(), flags: flags}}
	for i := range 3 {
		f.pods = append(f.pods, netip.MustParseAddr(fmt.Sprintf("10.244.1.%d", 10+i)))
		f.outside = append(f.outside, netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 100+i)))
	}
	plan := lab.Plan{Node: []netip.Addr{nodeIP}, Outside: f.outside}
	for i := range remoteNodes {
		f.remote = append(f.remote, netip.MustParseAddr(fmt.Sprintf("10.244.%d.2", 2+i)))
	}
	for i, a := range append(slices.Clone(f.pods), f.remote...) {
		plan.Pods = append(plan.Pods, lab.Pod{Place: lab.Place(a.String()), Interface: fmt.Sprintf("pod%d", i), Addrs: []netip.Addr{a}})
	}
	if f.net, err = lab.New(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.kill()
		if err := f.net.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the program said:\n%s", f.log.String())
		}
	})
	for _, a := range f.remote {
		if _, err := f.net.Serve(lab.Place(a.String()), netip.AddrPortFrom(a, 8080), model.TCP); err != nil {
			t.Fatal(err)
		}
	}
	f.put(f.manifest())
	return f
}

func (f *failoverSite) manifest() string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  ports:
  - {name: http, protocol: TCP, port: 80, nodePort: 30080}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
`)
	for i, a := range f.remote {
		fmt.Fprintf(&b, "- {addresses: [%s], nodeName: node-%d, conditions: {ready: true}}\n", a, 2+i)
	}
	fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n", nodeIP)
	return b.String()
}

// silence makes nodes drop whatever comes, as if they were off, or lets them live again.
func (f *failoverSite) silence(dead bool, nodes ...int) {
	f.t.Helper()
	rules := "delete table inet dead"
	if dead {
		rules = "table inet dead { chain in { type filter hook prerouting priority -400; policy drop; }; }"
	}
	for _, n := range nodes {
		f.nft(f.remote[n], rules)
	}
}

func (f *failoverSite) nft(at netip.Addr, rules string) {
	f.t.Helper()
	cmd := exec.Command("nft", rules)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := f.net.Do(lab.Place(at.String()), cmd.Run); err != nil {
		f.t.Fatalf("nft %s: %v: %s", rules, err, out.String())
	}
}

// attempt is one connection of a client.
type attempt struct {
	began  time.Time
	took   time.Duration
	server netip.Addr
	failed string
}

// load makes connections evenly for a while, half of them by pods to the cluster IP and
// half from outside to the node port. Clients are patient for 10 s.
func (f *failoverSite) load(perSecond int, d time.Duration) (all []attempt) {
	var mu sync.Mutex
	var clients sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		n := len(all)
		call := lab.Call{From: lab.Place(f.pods[n/2%3].String()), Proto: model.TCP, To: clusterIP, Timeout: 10 * time.Second}
		if n%2 == 1 {
			call = lab.Call{From: lab.Outside, Src: f.outside[n/2%3], Proto: model.TCP, To: nodePort, Timeout: 10 * time.Second}
		}
		mu.Lock()
		all = append(all, attempt{began: time.Now()})
		mu.Unlock()
		clients.Go(func() {
			a, err := f.net.Dial(call)
			mu.Lock()
			defer mu.Unlock()
			one := &all[n]
			one.took, one.server = time.Since(one.began), a.Server.Addr()
			if err != nil || a.Outcome != lab.Answered {
				one.failed = fmt.Sprint(a.Outcome, " ", err)
			}
		})
	}
	clients.Wait()
	return all
}

func failures(all []attempt) (n int) {
	for _, a := range all {
		if a.failed != "" {
			n++
		}
	}
	return n
}

func percentile(all []attempt, p float64) time.Duration {
	took := make([]time.Duration, len(all))
	for i, a := range all {
		took[i] = a.took
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(p*float64(len(took))))]
}

// share is what part of the connections an endpoint has.
func share(all []attempt, server netip.Addr, since time.Time) float64 {
	n, its := 0, 0
	for _, a := range all {
		if a.began.After(since) {
			n++
			if a.server == server {
				its++
			}
		}
	}
	return float64(its) / float64(max(n, 1))
}

// said returns when the program first logged a line with a text, after a moment.
func (f *failoverSite) said(text string, after time.Time) (time.Time, bool) {
	for line := range strings.Lines(f.log.String()) {
		stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		if !strings.Contains(rest, text) {
			continue
		}
		if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil && at.After(after) {
			return at, true
		}
	}
	return time.Time{}, false
}

const passedOver = "reason=Unanswered"

// TestFailover silences one of five nodes under load: no connection may be lost.
func TestFailover(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			f := newFailoverSite(t, "--proxy-mode", mode)
			f.start()
			if all := f.load(100, 3*time.Second); failures(all) > 0 {
				t.Fatalf("%d connections failed before anything happened", failures(all))
			}
			f.silence(true, 2)
			dead := time.Now()
			all := f.load(100, 5*time.Second)
			at, found := f.said(passedOver, dead)
			t.Logf("%d connections, %d failed, p50 %s, p99 %s, longest %s; detected after %s", len(all), failures(all),
				percentile(all, 0.5), percentile(all, 0.99), percentile(all, 1), at.Sub(dead))
			if !found || failures(all) > 0 {
				t.Errorf("%d of %d connections failed", failures(all), len(all))
			}
			f.silence(false, 2)
			back := time.Now()
			all = f.load(100, 13*time.Second)
			if got := share(all, f.remote[2], back.Add(10*time.Second)); got < 0.1 {
				t.Errorf("10 s after its return the endpoint has %.0f %% of the connections", 100*got)
			}
			if n := failures(all); n > 0 {
				t.Errorf("%d connections failed after the return", n)
			}
		})
	}
}
