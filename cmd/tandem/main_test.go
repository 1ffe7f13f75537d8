// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/platform"
)

const webYAML = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- addresses: [10.244.1.2]
- addresses: [10.244.1.3]
`

var nodePortYAML = strings.Replace(strings.Replace(webYAML, "spec:\n", "spec:\n  type: NodePort\n", 1), "port: 80,", "port: 80, nodePort: 30080,", 1)

// tandem runs the program and returns its output.
func tandem(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), append([]string{"tandem"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFlagsAloneMeanRun(t *testing.T) {
	for line, want := range map[string]string{
		"tandem --manifests x":             "run --manifests x",
		"/usr/local/bin/kube-proxy --v=2":  "run --v=2",
		"kube-proxy.exe --v=2":             "run --v=2",
		"kube-proxy":                       "run",
		"/bin/kubectl-tandem diff -o json": "kubectl diff -o json",
		"tandem plan --manifests x":        "plan --manifests x",
		"tandem --help":                    "--help",
		"tandem --version":                 "--version",
		"tandem":                           "",
	} {
		if got := strings.Join(verb(strings.Fields(line)), " "); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

// All mistakes are reported at once, with exit code 2.
func TestUsageErrors(t *testing.T) {
	code, _, stderr := tandem(t, "run", "--proxy-mode", "warp", "--cluster-cidr", "10.0.0.0/99", "--detect-local-mode", "Guess", "--iptables-masquerade-bit", "32", "--nodeport-addresses", "here")
	if code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	for _, part := range []string{"--proxy-mode: \"warp\"", "--cluster-cidr: \"10.0.0.0/99\"", "--detect-local-mode: \"Guess\"", "--iptables-masquerade-bit: 32", "--nodeport-addresses: \"here\"", "--manifests"} {
		if !strings.Contains(stderr, part) {
			t.Errorf("%q is missing in:\n%s", part, stderr)
		}
	}
	for _, args := range [][]string{{"run", "--nonsense"}, {"plan", "stray"}, {"plan", "--prune", "--manifests", t.TempDir()}, {"plan", "--against-running", "--manifests", t.TempDir(), "-n", "shop"}, {"plan", "--against-running", "--manifests", t.TempDir(), "--part", "nft"}, {"plan", "--against-running", "--manifests", t.TempDir(), "-o", "native"}, {"plan", "--against-running", "--manifests", t.TempDir(), "--snapshot", "s"}, {"packaging"}, {"packaging", "a", "b"}, {"docs", "a", "b"}, {"docs", "nowhere"}, {"docs", "--listen", "192.0.2.1:80"}, {"trace", "host", "192.0.2.1:80", "--live", "--timeout", "0"}, {"trace", "host", "192.0.2.1:80", "--live", "--timeout", "1h"}, {"plan", "--manifests", t.TempDir(), "-o", "xml"}} {
		if code, _, stderr := tandem(t, args...); code != exitUsage || strings.Contains(stderr, "goroutine") {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
}

// Flags that exclude each other are a mistake on the command line like others.
func TestFlagsThatExcludeEachOther(t *testing.T) {
	for _, line := range []string{
		"status --watch", "drift --watch", "drift --repair", "top --watch", "top --endpoints", "top --bytes",
		"plan --manifests x", "explain host 192.0.2.1:80 --manifests x", "trace host 192.0.2.1:80 --manifests x", "trace host 192.0.2.1:80 --live",
	} {
		args := append(strings.Fields(line), "--snapshot", filepath.Join(t.TempDir(), "missing"))
		if code, _, stderr := tandem(t, args...); code != exitUsage || !strings.Contains(stderr, "--help'") {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
	for _, line := range []string{"drift --watch --repair", "test connectivity --in-cluster --existing", "test connectivity --in-cluster --running x"} {
		if code, _, stderr := tandem(t, strings.Fields(line)...); code != exitUsage {
			t.Errorf("%s: exit code %d, %s", line, code, stderr)
		}
	}
}

// What tandem test cannot do is reported before anything is created.
func TestTestArguments(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"},
		{"connectivity", "stray"},
		{"connectivity", "--proxy-mode", "warp"},
		{"connectivity", "--ip-families", "IPv5"},
		{"connectivity", "--ip-families", "IPv4,IPv4"},
		{"connectivity", "--existing", "--running", "dir"},
		{"connectivity", "-n", "shop"},
		{"connectivity", "--in-cluster", "--image", "backend", "-n", "shop"},
		{"connectivity", "--running", "dir", "--proxy-mode", "nftables"},
		{"connectivity", "--running", "dir", "--pod-ranges", "10.0.0.0/31"},
		{"disrupt", "--rate", "0"},
		{"disrupt", "--hold", "1000000"},
		{"disrupt", "--for", "48h"},
		{"disrupt", "--switch", "auto"},
		{"disrupt", "--switch", "iptables", "--restart"},
		{"disrupt", "--running", "dir", "--restart"},
		{"disrupt", "--running", "dir", "--", "--masquerade-all"},
	} {
		if code, _, stderr := tandem(t, append([]string{"test"}, args...)...); code != exitUsage {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
}

// Every verb about a Service reads its name alike, and a mistake there is one of usage.
func TestServiceArguments(t *testing.T) {
	for _, verb := range []string{"drift", "history", "services"} {
		for _, args := range [][]string{{"a/b/c"}, {"/b"}, {"a/"}, {"a", "b"}} {
			if code, _, stderr := tandem(t, append([]string{verb}, args...)...); code != exitUsage {
				t.Errorf("%s %v: exit code %d: %s", verb, args, code, stderr)
			}
		}
	}
	if code, _, _ := tandem(t, "replay", "a", "b"); code != exitUsage {
		t.Errorf("replay of two files: exit code %d", code)
	}
	for text, want := range map[string]string{"web": "default/web", "shop/web": "shop/web"} {
		if n, err := serviceArgument([]string{text}); err != nil || n.String() != want {
			t.Errorf("%s: %s, %v", text, n, err)
		}
	}
}

// A verb that there is not is a mistake, and the one that may be meant is named.
func TestUnknownVerbs(t *testing.T) {
	for line, want := range map[string]string{
		"staus":          `tandem has no verb "staus": did you mean 'tandem status'?`,
		"dump x":         `tandem has no verb "dump": did you mean 'tandem hns dump'?`,
		"config explian": `tandem config has no verb "explian": did you mean 'tandem config explain'?`,
		"plam --v 2":     `tandem has no verb "plam": did you mean 'tandem plan'?`,
		"xyzzy":          `tandem has no verb "xyzzy"`,
	} {
		code, stdout, stderr := tandem(t, strings.Fields(line)...)
		if first, _, _ := strings.Cut(stderr, "\n"); code != exitUsage || first != "tandem: "+want || stdout != "" {
			t.Errorf("%s: exit code %d, %s%s", line, code, stdout, stderr)
		}
	}
}

func TestPlan(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": webYAML})
	code, stdout, stderr := tandem(t, "plan", "--manifests", dir, "--node", "node-1", "--cluster-cidr", "10.244.0.0/16")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, line := range []string{
		"default/web",
		"10.96.0.10:80/tcp  cluster IP",
		"from pod                 balance 10.244.1.2:8080 10.244.1.3:8080 (balanced over ready endpoints of the cluster)",
		"from host, outside       balance 10.244.1.2:8080 10.244.1.3:8080, SNAT",
		"plan: 1 Service, 1 port,",
	} {
		if !strings.Contains(stdout, line) {
			t.Errorf("%q is missing in:\n%s", line, stdout)
		}
	}
	code, stdout, _ = tandem(t, "plan", "--manifests", dir, "--node", "node-1", "-o", "json")
	if code != exitOK || !strings.Contains(stdout, `"10.244.1.3:8080"`) {
		t.Errorf("json: exit code %d\n%s", code, stdout)
	}
	code, stdout, _ = tandem(t, "plan", "--manifests", dir, "--node", "node-1", "-o", "native")
	if code != exitOK || !strings.Contains(stdout, "10.96.0.10 . tcp . 80") {
		t.Errorf("native: exit code %d\n%s", code, stdout)
	}
}

func TestPlanSaysWhatItRefused(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": webYAML, "bad.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {prots: []}\n"})
	code, stdout, stderr := tandem(t, "plan", "--manifests", dir, "--node", "node-1")
	if code != exitFailure || !strings.Contains(stdout, "default/web") {
		t.Errorf("the valid Service must be in the plan: exit code %d\n%s", code, stdout)
	}
	if !strings.Contains(stderr, "bad.yaml:4") || !strings.Contains(stderr, "prots") {
		t.Errorf("the bad one must be named with file and line:\n%s", stderr)
	}
	if code, _, stderr := tandem(t, "plan", "--manifests", filepath.Join(dir, "none")); code != exitFailure || !strings.Contains(stderr, "none") {
		t.Errorf("no such folder: exit code %d, %s", code, stderr)
	}
}

// The source ranges of a frontend are in both forms, also an empty list, which admits no client.
func TestPlanSaysSourceRanges(t *testing.T) {
	const text = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:10:96::10"]
  externalIPs: [203.0.113.9]
  loadBalancerSourceRanges: [198.51.100.0/24]
  ports: [{name: http, port: 80}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.9}, {ip: "2001:db8:cafe::9"}]}}
`
	args := []string{"plan", "--manifests", folder(t, map[string]string{"web.yaml": text}), "--node", "node-1"}
	code, stdout, stderr := tandem(t, args...)
	for _, line := range []string{
		"  203.0.113.9:80/tcp  load balancer IP, sources 198.51.100.0/24\n",
		"  [2001:db8:cafe::9]:80/tcp  load balancer IP, sources none\n",
		"  10.96.0.10:80/tcp  cluster IP\n",
	} {
		if code != exitFailure || !strings.Contains(stdout, line) { // the IPv6 one is closed
			t.Errorf("exit code %d, no %q in:\n%s", code, line, stdout)
		}
	}
	if want := "load balancer IP 2001:db8:cafe::9: loadBalancerSourceRanges has no range of this IP family"; !strings.Contains(stderr, want) {
		t.Errorf("no %q in:\n%s", want, stderr)
	}
	_, stdout, _ = tandem(t, append(args, "-o", "json")...)
	for _, field := range []string{`"sources": []`, `"198.51.100.0/24"`} {
		if !strings.Contains(stdout, field) {
			t.Errorf("no %s in:\n%s", field, stdout)
		}
	}
	if n := strings.Count(stdout, `"sources"`); n != 2 {
		t.Errorf("%d frontends with sources in:\n%s", n, stdout)
	}
}

// A mode that names its node port addresses by the Node needs the Node, where a Service has
// node ports.
func TestPlanSaysThatTheNodeIsUnknown(t *testing.T) {
	files := map[string]string{"web.yaml": webYAML}
	if code, _, stderr := tandem(t, "plan", "--manifests", folder(t, files), "--node", "node-1", "--proxy-mode", "nftables"); code != exitOK || stderr != "" {
		t.Errorf("no node ports: exit code %d: %s", code, stderr)
	}
	files["web.yaml"] = nodePortYAML
	args := []string{"plan", "--manifests", folder(t, files), "--node", "node-1", "--proxy-mode", "nftables"}
	if code, _, stderr := tandem(t, args...); code != exitFailure || !strings.Contains(stderr, "Node node-1: nodePorts are not served") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	files["node.yaml"] = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n"
	args[2] = folder(t, files)
	if code, _, stderr := tandem(t, args...); code != exitOK || stderr != "" {
		t.Errorf("with its Node: exit code %d: %s", code, stderr)
	}
}

// Without a Node object and a name, manifests are meant for this machine, and its addresses.
func TestManifestsForThisMachine(t *testing.T) {
	all, err := platform.LocalAddresses()
	if err != nil || !slices.ContainsFunc(all, func(a model.LocalAddress) bool { return a.Prefix.Addr().Is4() && !a.Prefix.IsSingleIP() }) {
		t.Skipf("this machine has no IPv4 address on a network: %v, %v", all, err)
	}
	dir := folder(t, map[string]string{"web.yaml": nodePortYAML})
	if code, _, stderr := tandem(t, "plan", "--manifests", dir, "--proxy-mode", "nftables"); code != exitOK || stderr != "" {
		t.Errorf("plan: exit code %d: %s", code, stderr)
	}
	code, stdout, stderr := tandem(t, "explain", "host", "default/web", "--manifests", dir)
	if code != exitOK || !strings.Contains(stdout, "10.244.1.2:8080") {
		t.Errorf("explain host: exit code %d: %s%s", code, stdout, stderr)
	}
	if code, _, stderr := tandem(t, "explain", "host", "default/web", "--manifests", dir, "--node", "node-1"); code == exitOK || !strings.Contains(stderr, "this node has no IPv4 address") {
		t.Errorf("another node: exit code %d: %s", code, stderr)
	}
}

func TestPlanDocumentHasTheGaps(t *testing.T) {
	id := model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "svc"}, Name: "http", Proto: model.TCP}
	d := &question.Document{Snapshot: &engine.Snapshot{Host: &model.Host{Name: "node-1"}}, Plan: &dataplane.Plan{}}
	d.Plan.Gaps = map[model.PortID][]model.Gap{id: {
		{Detail: "all of it"}, {Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Detail: "one front"},
	}}
	want := []question.PlanGap{{Port: id.String(), Detail: "all of it"}, {Port: id.String(), Front: "10.96.0.1:80", Detail: "one front"}}
	if got := question.PlanOf(d, question.Filter{}).Gaps; !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// Each mode is cleaned up, even if others fail.
func TestCleanupTriesEveryMode(t *testing.T) {
	fails := func(name config.Mode) dataplane.Mode {
		return dataplane.Mode{Name: name, Open: func(_ context.Context, c *config.Config, _ *slog.Logger) (dataplane.Backend, error) {
			return nil, fmt.Errorf("no %d", c.MasqueradeBit)
		}}
	}
	c := config.Default()
	c.MasqueradeBit = 3
	d, err := cleanup(t.Context(), &c, []dataplane.Mode{fails("one"), fails("two")})
	if err == nil || err.Error() != "mode one: no 3\nmode two: no 3" {
		t.Errorf("got %v", err)
	}
	if want := []cleanupMode{{Mode: "one", Failed: "no 3"}, {Mode: "two", Failed: "no 3"}}; !slices.Equal(d.Modes, want) {
		t.Errorf("got %+v", d.Modes)
	}
	var out bytes.Buffer
	s := newScreen(&out)
	d, err = cleanup(t.Context(), &c, nil)
	writeCleanup(s, d)
	if err = cmp.Or(err, s.flush()); err != nil || !strings.Contains(out.String(), "nothing to remove") {
		t.Errorf("no modes: %v, %s", err, &out)
	}
}

// run shows each of its flags once, under a subject; other verbs show their own flags
// and few of run's.
func TestHelpOfFlags(t *testing.T) {
	_, help, _ := tandem(t, "run", "--help")
	for _, g := range config.Groups() {
		if !strings.Contains(help, "\n"+g.Title+":\n") {
			t.Errorf("run has no subject %s", g.Title)
		}
	}
	flag := regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`)
	seen := map[string]int{}
	for _, m := range flag.FindAllStringSubmatch(help, -1) {
		seen[m[1]]++
	}
	ofRun := map[string]bool{}
	for _, s := range config.Settings() {
		ofRun[s.Flag] = s.Flag != ""
		if hidden := s.Deprecated != "" || s.Unused != "" && s.Path == ""; s.Flag != "" && len(s.Flag) > 1 && !hidden && seen[s.Flag] != 1 {
			t.Errorf("run shows --%s %d times", s.Flag, seen[s.Flag])
		}
	}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			visit(sub)
		}
		var shown []string
		_, help, _ := tandem(t, append(strings.Fields(c.CommandPath())[1:], "--help")...)
		for _, m := range flag.FindAllStringSubmatch(help, -1) {
			if ofRun[m[1]] {
				shown = append(shown, m[1])
			}
		}
		if c.Name() != "run" && (len(shown) > len(mostUsed()) || c.Name() == "cleanup" && !slices.Equal(shown, []string{"ipvs-exclude-cidrs"})) {
			t.Errorf("%s shows flags of run: %q", c.CommandPath(), shown)
		}
	}
	visit(newRoot())
}

func TestHelpAndVersion(t *testing.T) {
	if code, stdout, _ := tandem(t, "--help"); code != exitOK || !strings.Contains(stdout, "tandem demo") {
		t.Errorf("help: %d\n%s", code, stdout)
	}
	if code, stdout, _ := tandem(t, "version"); code != exitOK || !strings.HasPrefix(stdout, "tandem ") {
		t.Errorf("version: %d\n%s", code, stdout)
	}
	_, help, _ := tandem(t, "run", "--help")
	for _, name := range platform.Names() {
		if !strings.Contains(help, name) {
			t.Errorf("mode %s is not in the help of run", name)
		}
	}
	verbs := []string{}
	for _, c := range newRoot().Commands() {
		verbs = append(verbs, c.Name())
	}
	for _, v := range []string{"run", "plan", "demo", "status", "cleanup", "version"} {
		if !slices.Contains(verbs, v) {
			t.Errorf("no verb %s", v)
		}
	}
	if code, stdout, _ := tandem(t, "completion", "bash"); code != exitOK || !strings.Contains(stdout, "bash completion") {
		t.Errorf("completion: %d", code)
	}
}

// A mistyped flag prints the verb's flags.
func TestUsageNamesTheVerb(t *testing.T) {
	code, _, stderr := tandem(t, "plan", "--mode", "ipvs")
	for _, want := range []string{"did you mean --proxy-mode?", "See 'tandem plan --help'."} {
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, no %q: %s", code, want, stderr)
		}
	}
}

func TestStatusWithoutADaemon(t *testing.T) {
	code, _, stderr := tandem(t, "status", "--address", "127.0.0.1:1")
	if code != exitFailure || !strings.Contains(stderr, "is it running") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// Replay compares with what is recorded, and says where that cannot be compared.
func TestReplayCompares(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "platform", "testdata", "nftables.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	plan := regexp.MustCompile(`"plan":"[0-9a-f]{64}"`)
	for _, c := range []struct {
		recorded string
		code     int
		stderr   string
	}{
		{string(plan.Find(text)), exitOK, ""},
		{`"ports":"4:0000000000000000"`, exitDiffers, "resolved Service ports differ: recorded by tandem golden on linux, recomputed by this version"},
		{`"ports":"2:0000000000000000"`, exitOK, "resolved Service ports cannot be compared: tandem golden did not record them as this version does"},
		{`"ports":"0000000000000000"`, exitOK, "resolved Service ports cannot be compared: tandem golden did not record them as this version does"},
	} {
		path := filepath.Join(t.TempDir(), "snapshot")
		if err := os.WriteFile(path, plan.ReplaceAll(text, []byte(c.recorded)), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, stderr := tandem(t, "replay", path)
		if code != c.code || !strings.Contains(out, "plan: ") || !strings.Contains(stderr, c.stderr) || strings.Contains(stderr, "resolved Service ports") != (c.stderr != "") {
			t.Errorf("%.30s: exit code %d, %q", c.recorded, code, stderr)
		}
	}
}
