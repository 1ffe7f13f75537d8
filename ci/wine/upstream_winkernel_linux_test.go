// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// difference is a difference between the objects of kube-proxy and Tandem that is
// meant to be. Patterns match as a whole; an empty one matches everything.
type difference struct {
	node     string // name of a sameNode
	service  string // name of a sameService, or "no Service"
	object   string
	property string
	why      string
}

var differences = []difference{
	{
		"l2bridge 2019", "", "load balancer .*", "source VIP",
		"kube-proxy gives none on l2bridge, which breaks hairpin connections on builds of Server 2019 (kubernetes/community#8890, kubernetes#137455)",
	},
	{"", "no Service", `load balancer 198\.18\.0\.1 .*`, "there", "kube-proxy deletes all load balancers when it starts, also those of other programs; Tandem does not"},
	{"", "sctp", "", "there", "HNS has no SCTP (Kubernetes' service-protocol reference); here it is a Gap"},
	{"", "two-target-ports", "load balancer .*", "port|endpoints", "kube-proxy takes the last endpoint's port for all, which some do not serve; here the commonest, and the others are left out"},
	{"", "no Service", `remote endpoint .*[.:]4`, "there", "made for the load balancer of two-target-ports alone"},
	{"", "hints", "load balancer .*", "endpoints", "kube-proxy ignores topology hints on Windows (kubernetes#123823)"},
	{"", "terminating", "load balancer .*", "there", "kube-proxy falls back to terminating endpoints (KEP-1669) only for Services with a load balancer IP"},
	{"", "lb-terminating", "load balancer node ports.*", "there", "the same: not for the node port of such a Service"},
	{"", "lb-terminating", "load balancer .* port 10256/6", "there", "kube-proxy removes the forwarded health check with the ready endpoints; it is a check of the node (KEP-3836)"},
	{"", "lb-not-serving", "load balancer .* port 10256/6", "there", "the same, when no endpoint serves"},
	{"", "lb-not-serving", "load balancer .* port 80/6", "there", "kube-proxy uses endpoints that do not serve when no endpoint does"},
	{"overlay.*", "no-endpoints|all-unready|internal-local-none|lb-not-serving", `remote endpoint 10\.96\..*`, "there", "nothing leads to the VIP: here its endpoint is made with its load balancer"},
	{"", "lb-ranges", "load balancer .* port (80|10256)/6", "there", "kube-proxy opens the VIP to everybody (kubernetes#120033); --winkernel-source-ranges=trust does so here"},
	{"", "lb-udp", "load balancer .* port 10256/(6|17)", "there", "kube-proxy forwards health checks by the Service's protocol, and they are HTTP"},
	{"", "", "load balancer fd00:203.* port (10256|31036|31037)/6", "flags", "kube-proxy leaves the IPv6 flag of forwarded health checks out"},
}

// sameNode is a kind of node on which both proxies are compared.
type sameNode struct {
	name    string
	version hns.Version
	network string
	dsr     bool
	forward bool // health checks of VIPs
}

var sameNodes = []sameNode{
	{"l2bridge 2019", hnsemu.WS2019, hns.TypeL2Bridge, false, false},
	{"l2bridge 2022", hnsemu.WS2022, hns.TypeL2Bridge, false, true},
	{"l2bridge 2022 DSR", hnsemu.WS2022, hns.TypeL2Bridge, true, false},
	{"l2bridge 2025 DSR", hnsemu.WS2025, hns.TypeL2Bridge, true, true},
	{"overlay 2019", hnsemu.WS2019, hns.TypeOverlay, false, false},
	{"overlay 2022 DSR", hnsemu.WS2022, hns.TypeOverlay, true, true},
	{"overlay 2025", hnsemu.WS2025, hns.TypeOverlay, false, false},
}

// TestWinkernel compares what Tandem and kube-proxy's own proxier, each on an HNS
// of its own, make of the same Services.
func TestWinkernel(t *testing.T) {
	if err := lab.Available(); err != nil {
		t.Skip(err)
	}
	net, err := lab.New(t.Context(), lab.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00:192::1")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, net.Close) })
	var p *prefix
	onNode := func(f func()) { must(t, net.Do(lab.Node, func() error { f(); return nil })) }
	onNode(func() { p = open(t) })
	c := comparison{TB: t, prefix: p, net: net, tandem: build(t), winkernel: buildWinkernel(t), manifests: t.TempDir(), used: map[difference]int{}}
	must(t, os.WriteFile(filepath.Join(c.manifests, "services.yaml"), []byte(sameManifests()), 0o644))
	for _, n := range sameNodes {
		c.compare(n)
	}
	for _, d := range differences {
		if c.used[d] == 0 {
			t.Errorf("no longer a difference: %+v", d)
			continue
		}
		t.Logf("%d times: node %q, Service %q, %q, %s: %s", c.used[d], d.node, d.service, d.object, d.property, d.why)
	}
	fmt.Printf("winkernel: %d of %d alike, and %d but for the source VIP on l2bridge\n", c.alike, c.objects, c.nearly)
}

// buildWinkernel builds kube-proxy's proxier as a program.
func buildWinkernel(t testing.TB) string {
	exe := filepath.Join(t.TempDir(), "winkernel.exe")
	c := exec.Command("go", "build", "-C", "../kubernetes/upstream", "-trimpath", "-ldflags", "-s -w", "-o", exe, "./winkernel")
	c.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build kube-proxy's proxier: %v\n%s", err, out)
	}
	return exe
}

// comparison compares nodes and counts what is alike.
type comparison struct {
	testing.TB
	prefix            *prefix
	net               *lab.Net
	tandem, winkernel string // programs
	manifests         string
	used              map[difference]int
	objects           int
	alike             int
	nearly            int // differ by the first of differences alone
}

// world is an HNS with the pods of a node, for one of the proxies.
type world struct {
	emu     *hnsemu.Emulator
	planted []string // endpoints
	addr    string
}

const sameSourceVIP = "10.244.1.254"

func (c *comparison) world(t *testing.T, n sameNode) *world {
	w := &world{emu: hnsemu.New(n.version)}
	subnets := []hns.Policy{}
	for pods, node := range map[string]string{"10.244.2.0/24": "192.0.2.2", "10.244.3.0/24": "192.0.2.3"} {
		subnets = append(subnets, hns.Policy{Type: hns.PolicyRemoteSubnet, Settings: fmt.Appendf(nil,
			`{"DestinationPrefix":%q,"IsolationId":4096,"ProviderAddress":%q}`, pods, node)})
	}
	network := w.emu.AddNetwork("pods", n.network, subnets...)
	w.planted = []string{
		w.emu.AddPod(network, "10.244.1.2", "fd00:10:244:1::2"), w.emu.AddPod(network, "10.244.1.3", "fd00:10:244:1::3"),
		w.emu.AddEndpoint(hns.Endpoint{Name: "cbr0", HostComputeNetwork: network, IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.1.1", PrefixLength: 24}}}),
	}
	w.emu.AddBalancer(hns.LoadBalancer{
		HostComputeEndpoints: w.planted[1:2], FrontendVIPs: []string{"198.18.0.1"},
		PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 80}},
	}, false)
	must(t, c.net.Do(lab.Node, func() error { w.addr = serveHNS(t, w.emu); return nil }))
	return w
}

func (c *comparison) compare(n sameNode) {
	ours, theirs := &world{}, &world{}
	c.TB.(*testing.T).Run(n.name, func(t *testing.T) {
		ours, theirs = c.world(t, n), c.world(t, n)
		upstream := make(chan error, 1)
		go func() { upstream <- c.runWinkernel(n, theirs) }()
		stop := c.startTandem(t, n, ours)
		defer stop()
		must(t, <-upstream)
		want := inventory(theirs.emu, theirs.planted)
		var got map[string]facts
		var unexpected []string
		for steady, tries := 0, 0; steady < 5 && tries < 150; tries++ { // Tandem is on its way
			before := got
			got = inventory(ours.emu, ours.planted)
			steady++
			if unexpected = c.unexpected(n, want, got); len(unexpected) > 0 || !reflect.DeepEqual(got, before) {
				steady = 0
			}
			time.Sleep(200 * time.Millisecond)
		}
		for _, u := range unexpected {
			t.Error(u)
		}
		c.count(n, want, got)
	})
}

func (c *comparison) runWinkernel(n sameNode, w *world) error {
	cmd := c.prefix.command(c.winkernel, "-manifests", windowsPath(filepath.Join(c.manifests, "services.yaml")), "-node", "node-1",
		"-node-ips", "192.0.2.1,fd00:192::1", "-network-name", "pods", "-source-vip", sameSourceVIP, "-root-hnsendpoint-name", "cbr0",
		"-healthz-bind-address", "0.0.0.0:10256", fmt.Sprintf("-enable-dsr=%t", n.dsr), fmt.Sprintf("-forward-healthcheck-vip=%t", n.forward))
	cmd.Env = append(cmd.Env, "HNSEMU_ADDR="+w.addr)
	return c.net.Do(lab.Node, func() error {
		out, err := finish(cmd)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}

// startTandem starts Tandem and returns a function that stops it.
func (c *comparison) startTandem(t *testing.T, n sameNode, w *world) (stop func()) {
	os.RemoveAll(filepath.Join(c.prefix.dir, "drive_c/ProgramData/Tandem")) // of an earlier test
	cmd := c.prefix.command(c.tandem, "run", "--manifests", windowsPath(c.manifests), "--hostname-override", "node-1", "--proxy-mode", "kernelspace",
		"--metrics-bind-address", "", "--network-name", "pods", "--source-vip", sameSourceVIP, "--root-hnsendpoint-name", "cbr0",
		"--healthz-bind-address", "0.0.0.0:10256", fmt.Sprintf("--enable-dsr=%t", n.dsr), fmt.Sprintf("--forward-healthcheck-vip=%t", n.forward))
	cmd.Env = append(cmd.Env, "HNSEMU_ADDR="+w.addr)
	said := &output{}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, time.Second
	must(t, c.net.Do(lab.Node, cmd.Start))
	return func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		cmd.Wait() // it was ended
		if t.Failed() {
			t.Logf("the program said:\n%s", said)
		}
	}
}

// unexpected returns the differences without a reason.
func (c *comparison) unexpected(n sameNode, want, got map[string]facts) (all []string) {
	each(want, got, func(object, property, theirs, ours string) {
		if _, ok := expected(n, object, property); !ok {
			all = append(all, fmt.Sprintf("%s: %s: %s: kube-proxy has %q, Tandem %q", serviceOf(object), object, property, theirs, ours))
		}
	})
	return all
}

// count counts what is alike, and the differences that have a reason.
func (c *comparison) count(n sameNode, want, got map[string]facts) {
	objects := map[string]bool{}
	for name := range want {
		objects[name] = true
	}
	for name := range got {
		objects[name] = true
	}
	c.objects += len(objects)
	beyond := map[string]bool{} // differ by more than the first
	each(want, got, func(object, property, _, _ string) {
		delete(objects, object)
		d, ok := expected(n, object, property)
		if ok {
			c.used[d]++
		}
		beyond[object] = beyond[object] || d != differences[0]
	})
	c.alike += len(objects)
	for _, more := range beyond {
		if !more {
			c.nearly++
		}
	}
}

// each calls f for each property in which two HNS differ, in order. Of what only
// one has, it is that it is there.
func each(want, got map[string]facts, f func(object, property, theirs, ours string)) {
	for _, object := range slices.Sorted(maps.Keys(want)) {
		ours, ok := got[object]
		if !ok {
			f(object, "there", "yes", "no")
			continue
		}
		for _, property := range slices.Sorted(maps.Keys(want[object])) {
			if a, b := want[object][property], ours[property]; a != b {
				f(object, property, a, b)
			}
		}
	}
	for _, object := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[object]; !ok {
			f(object, "there", "no", "yes")
		}
	}
}

func expected(n sameNode, object, property string) (difference, bool) {
	for _, d := range differences {
		if fits(d.node, n.name) && fits(d.service, serviceOf(object)) && fits(d.object, object) && fits(d.property, property) {
			return d, true
		}
	}
	return difference{}, false
}

func fits(pattern, s string) bool {
	return pattern == "" || regexp.MustCompile("^(?:"+pattern+")$").MatchString(s)
}
