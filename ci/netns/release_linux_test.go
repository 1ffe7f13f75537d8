// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// releases are the earlier programs from which, and back to which, this one is put.
// The first is the previous release: name the new one at each release. The others had
// another layout of their rules.
var releases = []struct{ commit, what string }{
	{"0d30937e10c6cdaf45cea520f7366090c928b9be", "previous release"},
	{"c999a787", "one affinity set a port in nftables (layout 1)"},
	{"4bf1177d", "the first with all kernel modes"},
}

// earlier returns the program of a commit (ci/setup/earlier). It skips the test where it cannot be built here.
func earlier(t *testing.T, commit string) string {
	t.Helper()
	var said strings.Builder
	cmd := exec.Command("../setup/earlier", commit)
	cmd.Stderr = &said
	bin, err := cmd.Output()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 3 {
		t.Skip(said.String())
	}
	if err != nil {
		t.Fatalf("build of %s: %v: %s", commit, err, said.String())
	}
	return strings.TrimSpace(string(bin))
}

// TestUpgradeAndDowngrade replaces earlier programs by this one and this one by them,
// under load, in each mode: no connection fails or breaks.
func TestUpgradeAndDowngrade(t *testing.T) {
	for _, release := range releases {
		old := earlier(t, release.commit)
		t.Run(release.commit[:8], func(t *testing.T) {
			t.Log(release.what)
			eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
				if mode.Name == relay.Mode {
					t.Skip("its relays end with the process: see TestUserspaceUpgradeAndDowngrade")
				}
				u := newUpgrade(t)
				u.wrap, u.flags = flavour.wrap, []string{"--proxy-mode", string(mode.Name)}
				now := u.bin
				u.bin = old
				u.start()
				u.load()
				u.undisturbed("the old one alone")
				for i, step := range []struct{ what, bin string }{{"upgrade", now}, {"downgrade", old}, {"upgrade again", now}} {
					u.stop()
					u.bin = step.bin
					u.start()
					u.follows(step.what, fmt.Sprintf("10.244.1.%d", 4-i))
					u.undisturbed(step.what)
				}
				u.stop()
				u.must(now, "cleanup")
				if err := u.left(mode.Name); err != nil {
					t.Errorf("after cleanup: %v", err)
				}
			})
		})
	}
}

// numberedRelays is the last program whose relays of the userspace mode had the numbers of
// their pools: in the order of a port's frontends, not by policy.
const numberedRelays = "9942149a"

// ofPolicies are Services whose frontends have both policies, in both orders, and one of policy
// Local alone. Of their endpoints one is on this node.
const ofPolicies = `apiVersion: v1
kind: Service
metadata: {name: inner}
spec:
  type: NodePort
  clusterIP: 10.96.0.20
  internalTrafficPolicy: Local
  ports: [{name: http, port: 80, nodePort: 30081}]
---
apiVersion: v1
kind: Service
metadata: {name: outer}
spec:
  type: NodePort
  clusterIP: 10.96.0.21
  externalTrafficPolicy: Local
  ports: [{name: http, port: 80, nodePort: 30082}]
---
apiVersion: v1
kind: Service
metadata: {name: agent}
spec:
  clusterIP: 10.96.0.22
  internalTrafficPolicy: Local
  ports: [{name: http, port: 80}]
`

// writePolicies puts these Services and their slices into the folder.
func (s *site) writePolicies() {
	s.t.Helper()
	var b strings.Builder
	b.WriteString(ofPolicies)
	for _, name := range []string{"inner", "outer", "agent"} {
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-1, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
- {addresses: [10.244.1.2], nodeName: node-1, conditions: {ready: true}}
- {addresses: [10.244.1.3], nodeName: node-2, conditions: {ready: true}}
`, name, name)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "policies.yaml"), []byte(b.String()), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// patient are calls that wait for a process to start.
func patient(calls ...lab.Call) []lab.Call {
	for i := range calls {
		calls[i].Proto, calls[i].Timeout = model.TCP, time.Minute
	}
	return calls
}

// TestUserspaceUpgradeAndDowngrade replaces a program that has other names for relays by this
// one, and this one by it, under load and with a service manager that keeps the sockets: no
// connection fails. But the earlier one has another name for the relay of a port whose
// frontends all have policy Local: it resets clients that waited for it there.
func TestUserspaceUpgradeAndDowngrade(t *testing.T) {
	old := earlier(t, numberedRelays)
	mode, err := platform.Find(relay.Mode)
	if err != nil {
		t.Fatal(err)
	}
	for _, flavour := range flavours(mode) {
		t.Run(flavour.name, func(t *testing.T) {
			flavour.prepare(t)
			if err := works(t.Context(), mode); err != nil {
				t.Skip(err)
			}
			u := newUpgrade(t)
			kept := newStore(t)
			u.wrap = func(cmd *exec.Cmd) {
				if flavour.wrap != nil {
					flavour.wrap(cmd)
				}
				kept.Hand(cmd)
			}
			u.flags = []string{"--proxy-mode", string(mode.Name)}
			u.writePolicies()
			now := u.bin
			u.bin = old
			u.start()
			if n := kept.Size(); n == 0 {
				t.Fatal("no socket was handed over")
			}
			at := func(address string) netip.AddrPort { return netip.MustParseAddrPort(address) }
			const pod = "10.244.1.10"
			u.traffic = u.site.traffic(patient(
				lab.Call{From: pod, To: clusterIP}, lab.Call{From: lab.Outside, To: nodePort},
				lab.Call{From: pod, To: at("10.96.0.20:80")}, lab.Call{From: lab.Outside, To: at("192.0.2.1:30081")},
				lab.Call{From: pod, To: at("10.96.0.21:80")}, lab.Call{From: lab.Outside, To: at("192.0.2.1:30082")},
			)...)
			t.Cleanup(u.traffic.end)
			agent := u.site.traffic(patient(lab.Call{From: pod, To: at("10.96.0.22:80")})...)
			t.Cleanup(agent.end)
			u.undisturbed("the old one alone")
			for i, step := range []struct{ what, bin string }{{"upgrade", now}, {"restart", now}, {"downgrade", old}, {"upgrade again", now}} {
				u.stop()
				u.bin = step.bin
				time.Sleep(300 * time.Millisecond) // RestartSec
				u.start()
				u.follows(step.what, fmt.Sprintf("10.244.1.%d", 4-i%3))
				u.undisturbed(step.what)
				made, failed := agent.made.Swap(0), agent.failed.Swap(0)
				t.Logf("%s: %d of %d new connections to a port of policy Local alone failed", step.what, failed, made)
				if failed > 0 && step.bin == now {
					t.Errorf("%s: the last of them: %v", step.what, agent.failure())
				}
			}
			u.traffic.end()
			agent.end()
			u.stop()
			u.must(now, "cleanup")
			if err := u.left(mode.Name); err != nil {
				t.Errorf("after cleanup: %v", err)
			}
		})
	}
}
