// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// difference is why objects of kube-proxy and Tandem differ. Patterns match as a whole; an
// empty one matches everything. Which do, and in what, is in testdata/winkernel.txt.
type difference struct {
	node     string // name of a sameNode
	service  string // name of a sameService, or "no Service"
	object   string
	property string // "there" of an object that only one of them has
	kind     kind
	why      string
}

// String returns the reason.
func (d difference) String() string { return string(d.kind) + ": " + d.why }

// kind is what makes a difference right.
type kind string

const (
	upstream kind = "fault of kube-proxy"
	decision kind = "decision"
)

var differences = []difference{
	{
		"l2bridge 2019.*", "", "load balancer .*", "source VIP", upstream,
		"kube-proxy gives none on l2bridge, which breaks hairpin connections on builds of Server 2019 (kubernetes/community#8890, kubernetes#137455)",
	},
	{"", "no Service", `load balancer 198\.18\.0\..*`, "there", decision, "kube-proxy deletes all load balancers when it starts, also those of other programs; Tandem does not"},
	{"", "sctp", "", "there", decision, "HNS has no SCTP (Kubernetes' service-protocol reference); here it is a Gap"},
	{"", "two-target-ports", "load balancer .*", "port|endpoints", upstream, "kube-proxy takes the last endpoint's port for all, which some do not serve; here the commonest, and the others are left out"},
	{"", "no Service", `remote endpoint .*[.:]4`, "there", upstream, "kube-proxy makes it for the load balancer of two-target-ports alone"},
	{"", "hints", "load balancer .*", "endpoints", upstream, "kube-proxy ignores topology hints on Windows (kubernetes#123823)"},
	{"", "terminating", "load balancer .*", "there", upstream, "kube-proxy falls back to terminating endpoints (KEP-1669) only for Services with a load balancer IP"},
	{"", "lb-terminating", "load balancer node ports.*", "there", upstream, "kube-proxy does so for the load balancer IP alone, and not for the node port of such a Service"},
	{"", "lb-terminating", "load balancer .* port 10256/6", "there", upstream, "kube-proxy removes the forwarded health check when all endpoints terminate; it is a check of the node (KEP-3836)"},
	{"", "lb-not-serving", "load balancer .* port 10256/6", "there", upstream, "kube-proxy removes the forwarded health check when no endpoint serves; it is a check of the node (KEP-3836)"},
	{"", "lb-not-serving", "load balancer .* port 80/6", "there", upstream, "kube-proxy uses endpoints that do not serve when no endpoint does"},
	{"overlay.*", "no-endpoints|all-unready|internal-local-none|lb-not-serving|terminating|internal-local|slices|empty-at-first", `remote endpoint 10\.96\..*`, "there", decision, "nothing leads to the VIP: here its endpoint is made with its load balancer"},
	{"overlay.*", "leaving|leaving-everywhere", `remote endpoint 10\.96\..*`, "there", decision, "a load balancer that HNS does not delete keeps the endpoint of its VIP, which goes after it; kube-proxy deletes that first"},
	{"", "lb-ranges", "load balancer .* port (80|10256)/6", "there", decision, "kube-proxy opens the VIP to everybody (kubernetes#120033); --winkernel-source-ranges=trust does so here"},
	{"", "lb-udp", "load balancer .* port 10256/(6|17)", "there", upstream, "kube-proxy forwards health checks by the Service's protocol, and they are HTTP"},
	{
		"l2bridge 2019 DSR without ports", "", `load balancer (node ports|203\.0\.113\.|198\.51\.100\.).*`, "there", decision,
		"each takes 64 of the node's ports (Azure/AKS#1375), and kube-proxy does not count them; here an eighth is kept for the node and for cluster IPs",
	},
	{"", "no Service", "calls that failed: .*/(nodeport|externalip)/other", "there", upstream, "kube-proxy gives up on a Service when the load balancer of its cluster IP fails; here each is tried"},
	{"", "no Service", "calls that failed: create/.*/healthcheck/.*", "there", upstream, "kube-proxy counts no forwarded health check that it cannot create or change, but one that it cannot delete"},
	{"", "no Service", "calls that failed: delete/.*/ingressip/.*", "there", decision, "a load balancer of HNS does not say whose address it has: here all are external IPs"},
	{"", "", "load balancer fd00:203.* port (10256|31036|31037)/6", "flags", upstream, "kube-proxy leaves the IPv6 flag of forwarded health checks out"},
	{"", "", "load balancer fd00:203.* port 10256/6", "there", upstream, "kube-proxy finds what it replaces by the IPv6 flag, and the replacement without: after a change it deletes the forwarded health check, and takes the deleted one for the new"},
}

// sameNode is a kind of node on which both proxies are compared.
type sameNode struct {
	name    string
	version hns.Version
	network string
	dsr     bool
	forward bool // health checks of VIPs
	full    bool // other programs' load balancers leave no ports of the node for those without DSR
}

// plays is how many phases are played on it.
func (n sameNode) plays() int {
	if n.full {
		return 1
	}
	return len(phases)
}

var sameNodes = []sameNode{
	{"l2bridge 2019", hnsemu.WS2019, hns.TypeL2Bridge, false, false, false},
	{"l2bridge 2019 DSR without ports", hnsemu.WS2019, hns.TypeL2Bridge, true, false, true},
	{"l2bridge 2022", hnsemu.WS2022, hns.TypeL2Bridge, false, true, false},
	{"l2bridge 2022 DSR", hnsemu.WS2022, hns.TypeL2Bridge, true, false, false},
	{"l2bridge 2025 DSR", hnsemu.WS2025, hns.TypeL2Bridge, true, true, false},
	{"overlay 2019", hnsemu.WS2019, hns.TypeOverlay, false, false, false},
	{"overlay 2022 DSR", hnsemu.WS2022, hns.TypeOverlay, true, true, false},
	{"overlay 2025", hnsemu.WS2025, hns.TypeOverlay, false, false, false},
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
	c := comparison{TB: t, prefix: p, net: net, tandem: build(t), winkernel: buildWinkernel(t), manifests: t.TempDir(), rows: rows{}, compared: map[string]bool{}}
	for phase := range phases {
		must(t, os.WriteFile(filepath.Join(c.manifests, phases[phase]+".yaml"), []byte(sameManifests(phase)), 0o644))
	}
	listed, err := readRows(rowsFile)
	must(t, err)
	c.listed = listed
	for _, n := range sameNodes {
		c.compare(n)
	}
	for row, places := range listed { // of what was not run
		for _, at := range places {
			if *update && !c.compared[at] {
				c.rows.add(row, at)
			}
		}
	}
	if *update {
		for row := range c.rows { // in the order of a whole run
			slices.SortFunc(c.rows[row], func(a, b string) int { return place(a) - place(b) })
		}
		must(t, os.WriteFile(rowsFile, []byte(c.rows.text()), 0o644))
	}
	for phase, name := range phases {
		fmt.Printf("winkernel: %s: %d of %d alike, and %d but for the source VIP on l2bridge\n", name, c.alike[phase], c.objects[phase], c.nearly[phase])
	}
}

// TestWinkernelRows demands that every difference in the file has its reason here, and that every
// reason has a difference: TestWinkernel demands that each is still so.
func TestWinkernelRows(t *testing.T) {
	listed, err := readRows(rowsFile)
	must(t, err)
	written, err := os.ReadFile(rowsFile)
	must(t, err)
	if listed.text() != string(written) {
		t.Errorf("%s is not as it would be written", rowsFile)
	}
	reasons := map[string]bool{}
	for _, d := range differences {
		reasons[d.String()] = false
	}
	for row := range listed {
		why, _, _ := strings.Cut(row, "\n")
		if _, ok := reasons[why]; !ok {
			t.Errorf("%s has no reason here: %s", rowsFile, why)
		}
		reasons[why] = true
	}
	for why, used := range reasons {
		if !used {
			t.Errorf("explains nothing in %s: %s", rowsFile, why)
		}
	}
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
	listed, rows      rows // as the file has them, and as they are
	compared          map[string]bool
	objects           [len(phases)]int
	alike             [len(phases)]int
	nearly            [len(phases)]int // differ by the first of differences alone
}

// world is an HNS with the pods of a node, for one of the proxies.
type world struct {
	emu     *hnsemu.Emulator
	planted []string // endpoints
	addr    string
	failed  func() ([]string, error) // calls that failed, by the proxy's metrics, as "verb/family/type/error"
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
	others := 1
	if n.full {
		others = fullPorts / 64
	}
	for i := range others {
		w.emu.AddBalancer(hns.LoadBalancer{
			HostComputeEndpoints: w.planted[1:2], FrontendVIPs: []string{fmt.Sprintf("198.18.0.%d", i+1)},
			PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 80}},
		}, false)
	}
	must(t, c.net.Do(lab.Node, func() error { w.addr = serveHNS(t, w.emu); return nil }))
	return w
}

// fullPorts is how many dynamic ports a node has that is full: the fewest that there can be.
const fullPorts = 255

func (c *comparison) compare(n sameNode) {
	c.TB.(*testing.T).Run(n.name, func(t *testing.T) {
		theirs, ours := c.world(t, n), c.world(t, n)
		program := c.startWinkernel(t, n, theirs)
		services := filepath.Join(t.TempDir(), "services.yaml")
		for phase := range n.plays() {
			for _, w := range []*world{theirs, ours} {
				w.emu.Hook(refusing(phase))
			}
			retained := unused(ours.emu, ours.planted)
			manifests := filepath.Join(c.manifests, phases[phase]+".yaml")
			text, err := os.ReadFile(manifests)
			must(t, err)
			must(t, os.WriteFile(services+".new", text, 0o644))
			must(t, os.Rename(services+".new", services))
			if phase == cold {
				defer c.startTandem(t, n, ours, filepath.Dir(services))()
			}
			must(t, program(manifests))
			c.comparePhase(t, n, phase, retained, theirs, ours)
		}
	})
}

// refusing is a hook of an emulator that refuses in a phase what HNS does not do in it.
func refusing(phase int) func(*hnsemu.Call) hns.Code {
	verb, ok := faults[phase]
	if !ok {
		return nil
	}
	return func(c *hnsemu.Call) hns.Code {
		if c.Kind == hnsemu.LoadBalancer && c.Verb == verb {
			return 0x1f // a device attached to the system is not functioning (kubernetes#113524)
		}
		return 0
	}
}

// comparePhase waits until Tandem's HNS differs from kube-proxy's as the file says, for as long
// as that changes. Remote endpoints that nothing uses any more, which Tandem retains for a
// minute, do not count: retained are those from before the phase. In the last phase they must go.
func (c *comparison) comparePhase(t *testing.T, n sameNode, phase int, retained map[string]bool, theirs, ours *world) {
	const patience, rest = 600, 25 // polls
	want := inventory(theirs.emu, theirs.planted)
	must(t, theirs.count(phase, want))
	at := n.name + ": " + phases[phase]
	listed := c.listed.of(at)
	c.compared[at] = true
	var got map[string]facts
	var found map[string]bool
	for steady, tries := 0, 0; steady < rest && tries < patience; tries++ {
		before := got
		got, steady = inventory(ours.emu, ours.planted), steady+1
		idle, last := unused(ours.emu, ours.planted), phase == n.plays()-1
		if !last {
			maps.DeleteFunc(got, func(name string, _ facts) bool {
				_, same := want[name]
				both := same && !retained[name] && faults[phase] == hnsemu.Create // have it wait for its load balancer
				return idle[name] && !both
			})
		}
		must(t, ours.count(phase, got))
		found = rowsOf(n, want, got)
		waits := last && len(idle) > 0
		if !waits && maps.Equal(found, listed) {
			break
		}
		if waits || !reflect.DeepEqual(got, before) || slices.ContainsFunc(slices.Collect(maps.Keys(found)), isUnexplained) {
			steady = 0 // Tandem is on its way
		}
		time.Sleep(200 * time.Millisecond)
	}
	for row := range found {
		switch c.rows.add(row, at); {
		case isUnexplained(row):
			t.Errorf("%s: %s", at, row)
		case !listed[row] && !*update:
			t.Errorf("%s: new, not in %s: %s", at, rowsFile, row)
		}
	}
	for row := range listed {
		if !found[row] && !*update {
			t.Errorf("%s: no longer so, remove it from %s: %s", at, rowsFile, row)
		}
	}
	c.count(n, phase, want, got)
}

// count adds to an inventory which calls failed, in the phases in which some do.
func (w *world) count(phase int, all map[string]facts) error {
	if phase < faulty {
		return nil
	}
	failed, err := w.failed()
	for _, f := range failed {
		all["calls that failed: "+f] = facts{"counted": "yes"} // each proxy tries again at its own times
	}
	return err
}

// startWinkernel starts kube-proxy, and returns a function by which it programs a file of manifests.
func (c *comparison) startWinkernel(t *testing.T, n sameNode, w *world) (program func(manifests string) error) {
	cmd := c.prefix.command(c.winkernel, "-node", "node-1",
		"-node-ips", "192.0.2.1,fd00:192::1", "-network-name", "pods", "-source-vip", sameSourceVIP, "-root-hnsendpoint-name", "cbr0",
		"-healthz-bind-address", "0.0.0.0:10256", fmt.Sprintf("-enable-dsr=%t", n.dsr), fmt.Sprintf("-forward-healthcheck-vip=%t", n.forward))
	cmd.Env = append(cmd.Env, "HNSEMU_ADDR="+w.addr)
	said := &output{}
	cmd.Stderr, cmd.WaitDelay = said, time.Second
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, c.net.Do(lab.Node, cmd.Start))
	lines := make(chan string)
	go func() {
		defer close(lines)
		for answers := bufio.NewScanner(out); answers.Scan(); {
			lines <- answers.Text()
		}
	}()
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Process.Kill()); err != nil {
			t.Error(err)
		}
		for range lines {
		}
		cmd.Wait() // it was ended
		if t.Failed() {
			t.Logf("kube-proxy said:\n%s", said)
		}
	})
	var failed []string
	w.failed = func() ([]string, error) { return failed, nil }
	return func(manifests string) error {
		if _, err := fmt.Fprintln(in, windowsPath(manifests)); err != nil {
			return err
		}
		select {
		case line, ok := <-lines:
			if !ok {
				return errors.New("kube-proxy has ended")
			}
			failed = nil
			for word := range strings.FieldsSeq(line) {
				call, _, _ := strings.Cut(word, "=")
				failed = append(failed, call)
			}
			return nil
		case <-time.After(slowest):
			return fmt.Errorf("kube-proxy has not programmed %s within %s", manifests, slowest)
		}
	}
}

// startTandem starts Tandem and returns a function that stops it.
func (c *comparison) startTandem(t *testing.T, n sameNode, w *world, manifests string) (stop func()) {
	os.RemoveAll(filepath.Join(c.prefix.dir, "drive_c/ProgramData/Tandem")) // of an earlier test
	cmd := c.prefix.command(c.tandem, "run", "--manifests", windowsPath(manifests), "--hostname-override", "node-1", "--proxy-mode", "kernelspace",
		"--metrics-bind-address", sameMetrics, "--network-name", "pods", "--source-vip", sameSourceVIP, "--root-hnsendpoint-name", "cbr0",
		"--healthz-bind-address", "0.0.0.0:10256", fmt.Sprintf("--enable-dsr=%t", n.dsr), fmt.Sprintf("--forward-healthcheck-vip=%t", n.forward))
	if n.full {
		cmd.Args = append(cmd.Args, fmt.Sprintf("--winkernel-dynamic-ports=%d", fullPorts))
	}
	w.failed = c.tandemFailures
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

// slowest is how long kube-proxy may take for a file: minutes beside other work.
const slowest = 10 * time.Minute

// sameMetrics is where Tandem serves its metrics.
const sameMetrics = "127.0.0.1:10249"

var failedCalls = regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_winkernel_lb_(\w+)_failures_total\{error="(\w+)",ip_family="(\w+)",lb_type="(\w+)"\}`)

// tandemFailures asks Tandem which calls failed.
func (c *comparison) tandemFailures() (all []string, err error) {
	call := lab.Call{From: lab.Node, Proto: model.TCP, To: netip.MustParseAddrPort(sameMetrics), Timeout: time.Minute}
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return c.net.Connect(call) },
	}}
	res, err := client.Get("http://" + sameMetrics + "/metrics")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	for _, m := range failedCalls.FindAllSubmatch(text, -1) {
		all = append(all, fmt.Sprintf("%s/%s/%s/%s", m[1], m[3], m[4], m[2]))
	}
	if err == nil && !bytes.Contains(text, []byte("kubeproxy_sync_proxy_rules_duration_seconds")) {
		err = fmt.Errorf("no metrics: %.200s", text)
	}
	return all, err
}

// count counts what is alike.
func (c *comparison) count(n sameNode, phase int, want, got map[string]facts) {
	objects := map[string]bool{}
	for name := range want {
		objects[name] = true
	}
	for name := range got {
		objects[name] = true
	}
	c.objects[phase] += len(objects)
	beyond := map[string]bool{} // differ by more than the first
	each(want, got, func(object, property, _, _ string) {
		delete(objects, object)
		i := expected(n, object, property)
		beyond[object] = beyond[object] || i != 0
	})
	c.alike[phase] += len(objects)
	for _, more := range beyond {
		if !more {
			c.nearly[phase]++
		}
	}
}

// each calls f for each property in which two HNS differ, in order. Of what only
// one has, it is what that is.
func each(want, got map[string]facts, f func(object, property, theirs, ours string)) {
	for _, object := range slices.Sorted(maps.Keys(want)) {
		ours, ok := got[object]
		if !ok {
			f(object, "there", want[object].String(), ours.String())
			continue
		}
		for _, property := range slices.Sorted(maps.Keys(want[object])) {
			if a, b := want[object][property], ours[property]; a != b {
				f(object, property, a, b)
			}
		}
	}
	for _, object := range slices.Sorted(maps.Keys(got)) {
		if theirs, ok := want[object]; !ok {
			f(object, "there", theirs.String(), got[object].String())
		}
	}
}

// expected returns which of the differences explains one; -1 for none.
func expected(n sameNode, object, property string) int {
	return slices.IndexFunc(differences, func(d difference) bool {
		return fits(d.node, n.name) && fits(d.service, serviceOf(object)) && fits(d.object, object) && fits(d.property, property)
	})
}

func fits(pattern, s string) bool {
	return pattern == "" || regexp.MustCompile("^(?:"+pattern+")$").MatchString(s)
}

// rowsFile has every property in which they differ, with both values: of each difference the
// reason, in the next lines what differs, and below each where.
const rowsFile = "testdata/winkernel.txt"

var update = flag.Bool("update", false, "write "+rowsFile+" anew; review what has changed")

// rows are differences, each with where it is so.
type rows map[string][]string

func (r rows) add(row, at string) { r[row] = append(r[row], at) }

// of returns the rows of one place.
func (r rows) of(at string) map[string]bool {
	all := map[string]bool{}
	for row, places := range r {
		if slices.Contains(places, at) {
			all[row] = true
		}
	}
	return all
}

// place is where a place comes in a run.
func place(at string) int {
	i := 0
	for _, n := range sameNodes {
		for _, phase := range phases[:n.plays()] {
			if i++; n.name+": "+phase == at {
				return i
			}
		}
	}
	return 0
}

const unexplained = "unexplained"

func isUnexplained(row string) bool { return strings.HasPrefix(row, unexplained) }

// rowsOf returns the differences of two HNS.
func rowsOf(n sameNode, want, got map[string]facts) map[string]bool {
	all := map[string]bool{}
	each(want, got, func(object, property, theirs, ours string) {
		why := unexplained
		if i := expected(n, object, property); i >= 0 {
			why = differences[i].String()
		}
		all[strings.Join([]string{why, fmt.Sprintf("%s: %s: %s", serviceOf(object), object, property), "kube-proxy: " + theirs, "Tandem: " + ours}, "\n")] = true
	})
	return all
}

// text is the file of rows: the reason, what differs, both values and the places, each
// indented by a tab more.
func (r rows) text() string {
	var b strings.Builder
	before := make([]string, 2)
	for _, row := range slices.Sorted(maps.Keys(r)) {
		parts := strings.Split(row, "\n")
		for depth := range before {
			if parts[depth] != before[depth] || depth == 1 {
				b.WriteString(strings.Repeat("\t", depth) + parts[depth] + "\n")
			}
			before[depth] = parts[depth]
		}
		fmt.Fprintf(&b, "\t\t%s\n\t\t%s\n\t\tin %s\n", parts[2], parts[3], strings.Join(r[row], ", "))
	}
	return b.String()
}

// readRows reads what text has written.
func readRows(file string) (rows, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := rows{}
	var why, what string
	var values []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		value, third := strings.CutPrefix(line, "\t\t")
		places, last := strings.CutPrefix(value, "in ")
		switch {
		case third && last && len(values) == 2:
			all[strings.Join([]string{why, what, values[0], values[1]}, "\n")] = strings.Split(places, ", ")
		case third && len(values) < 2:
			values = append(values, value)
		case third:
			return nil, fmt.Errorf("%s: unexpected %q", file, line)
		case strings.HasPrefix(line, "\t"):
			what, values = line[1:], nil
		default:
			why = line
		}
	}
	return all, nil
}
