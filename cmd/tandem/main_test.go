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
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/linux/host"
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
		"from pod                 balance 10.244.1.2:8080, 10.244.1.3:8080 (balanced over ready endpoints of the cluster)",
		"from host, outside       balance 10.244.1.2:8080, 10.244.1.3:8080, SNAT",
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

// Where no tandem runs, verbs say so and how to start one, not which file is missing.
func TestNoTandemRuns(t *testing.T) {
	for _, line := range []string{"services", "history", "drift", "top", "snapshot", "explain host web", "trace host web:80", "services shop/web"} {
		code, _, stderr := tandem(t, strings.Fields(line)...)
		if code != exitFailure || !strings.Contains(stderr, "no tandem runs on this node") || !strings.Contains(stderr, "'tandem run'") || strings.Contains(stderr, "lstat") || strings.Contains(stderr, ".sock") {
			t.Errorf("%s: exit code %d, %s", line, code, stderr)
		}
	}
}

// run looks at its manifests before it sets kernel parameters, and takes one source of Services.
func TestRunChecksItsSourceFirst(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	code, _, stderr := tandem(t, "run", "--manifests", none, "--hostname-override", "n")
	if code != exitFailure || !strings.Contains(stderr, "--manifests: stat "+none) || strings.Contains(stderr, "mode chosen") || strings.Contains(stderr, "oom_score_adj") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	for _, verb := range []string{"run", "plan", "config check"} {
		for _, flag := range []string{"--kubeconfig", "--master"} {
			if code, _, stderr := tandem(t, append(strings.Fields(verb), "--manifests", none, flag, none)...); code != exitUsage || !strings.Contains(stderr, flag+": excludes --manifests") {
				t.Errorf("%s: exit code %d, %s", verb, code, stderr)
			}
		}
	}
}

// The help of every verb fits 100 columns, has no [=true|false], and each flag of an example is one of its verb's.
func TestHelp(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			visit(sub)
		}
		_, stdout, _ := tandem(t, append(strings.Fields(c.CommandPath())[1:], "--help")...)
		if strings.Contains(stdout, "[=true|false]") {
			t.Errorf("%s --help has [=true|false]", c.CommandPath())
		}
		inExamples := false
		for line := range strings.Lines(stdout) {
			if !strings.HasPrefix(line, " ") {
				inExamples = strings.HasPrefix(line, "Examples:")
			}
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > helpWidth && !inExamples {
				t.Errorf("%s --help: %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for line := range strings.Lines(c.Example) {
			line, _, _ = strings.Cut(line, " #")
			before, line, found := strings.Cut(line, "tandem ")
			if !found {
				continue
			}
			if strings.HasSuffix(before, "kubectl ") { // the plugin
				line = "kubectl " + line
			}
			line, _, _ = strings.Cut(line, " | ")
			at, rest, err := c.Root().Find(strings.Fields(line))
			for _, word := range rest {
				if word == "--" {
					break
				}
				name, isLong := strings.CutPrefix(word, "--")
				if name, _, _ = strings.Cut(name, "="); err != nil || isLong && at.Flags().Lookup(name) == nil && !at.DisableFlagParsing {
					t.Errorf("%s: example %q: %s has no flag %s, %v", c.CommandPath(), line, at.CommandPath(), word, err)
				}
			}
		}
	}
	visit(newRoot())
}

// config check with nothing to check is a mistake, not a valid configuration.
func TestConfigCheckOfNothing(t *testing.T) {
	if code, stdout, stderr := tandem(t, "config", "check"); code != exitUsage || strings.Contains(stdout, "valid") || !strings.Contains(stderr, "name a file") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

// A Service without a namespace is one of namespace default for all verbs, an address stays one.
func TestTargetArgument(t *testing.T) {
	for text, want := range map[string]string{
		"web": "default/web", "web:80": "default/web:80", "shop/web": "shop/web", "10.0.0.1:80": "10.0.0.1:80", "[2001:db8::1]:80": "[2001:db8::1]:80", "10.0.0.1:80/udp": "10.0.0.1:80/udp", "10.0.0.1": "10.0.0.1",
	} {
		if got := targetArgument(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	dir := folder(t, map[string]string{"web.yaml": webYAML})
	code, stdout, stderr := tandem(t, "explain", "--manifests", dir, "--node", "n", "--cluster-cidr", "10.244.1.0/24", "pod", "web:http")
	if code != exitOK || !strings.Contains(stdout, "FORWARD") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

// Two snapshots are compared in terms of Services, and the exit code says whether they differ.
func TestPlanOfTwoSnapshots(t *testing.T) {
	before := filepath.Join("..", "..", "platform", "testdata", "nftables.snapshot")
	text, err := os.ReadFile(before)
	if err != nil {
		t.Fatal(err)
	}
	const gone, come = "10.244.1.2", "10.244.1.222"
	after := filepath.Join(t.TempDir(), "after.snapshot")
	if err := os.WriteFile(after, bytes.ReplaceAll(text, []byte(`"`+gone+`"`), []byte(`"`+come+`"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := tandem(t, "plan", "--snapshot", before, "--against", before); code != exitOK || !strings.Contains(stdout, "no change") {
		t.Errorf("the same: exit code %d, %s%s", code, stdout, stderr)
	}
	code, stdout, stderr := tandem(t, "plan", "--snapshot", before, "--against", after)
	if code != exitDiffers || !strings.Contains(stdout, "endpoint "+come) || !strings.Contains(stdout, "endpoint "+gone) {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	if code, _, _ := tandem(t, "plan", "--against", after); code != exitUsage {
		t.Errorf("without --snapshot: exit code %d", code)
	}
}

// The history of a Service that never was is an error; a change has its date.
func TestHistoryText(t *testing.T) {
	path := filepath.Join("..", "..", "platform", "testdata", "nftables.snapshot")
	if code, stdout, stderr := tandem(t, "history", "--snapshot", path, "default/never"); code != exitFailure || !strings.Contains(stderr, "no Service default/never") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	if code, _, _ := tandem(t, "history", "--snapshot", path, "--watch"); code != exitUsage {
		t.Errorf("--watch of a snapshot: exit code %d", code)
	}
	var b bytes.Buffer
	s := newScreen(&b)
	writeHistory(s, history.Document{Entries: []history.Entry{{At: time.Date(2026, 11, 24, 18, 5, 0, 0, time.UTC), Kind: "Service", Verb: "added", Object: "default/web"}}})
	if _ = s.flush(); !strings.Contains(b.String(), "2026-11-24 18:05:00.000") {
		t.Error(b.String())
	}
}

// A verb that waits says so within a second, and what for; one that does not is silent.
func TestWaitsSpeak(t *testing.T) {
	var errs bytes.Buffer
	cmd := new(cobra.Command)
	cmd.SetErr(&errs)
	done := waiting(cmd, "waiting for a packet")
	time.Sleep(patience + 300*time.Millisecond)
	done()
	if !strings.HasPrefix(errs.String(), "waiting for a packet, ") {
		t.Errorf("%q", errs.String())
	}
	errs.Reset()
	waiting(cmd, "a moment")()
	if errs.Len() > 0 {
		t.Errorf("%q", errs.String())
	}
}

// The help of cleanup names each kernel parameter of connection tracking that run sets by default, and that stays.
func TestCleanupSaysWhatStays(t *testing.T) {
	_, help, _ := tandem(t, "cleanup", "--help")
	all := host.Conntrack(config.Default().Conntrack, 1)
	if len(all) == 0 {
		t.Error("none is set")
	}
	for _, s := range all {
		if name := path.Base(s.Path); !strings.Contains(help, name) {
			t.Errorf("%s stays, and is not in\n%s", name, help)
		}
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
		{`"ports":"5:0000000000000000"`, exitDiffers, "resolved Service ports differ: recorded by tandem golden on linux, recomputed by this version"},
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
