// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
)

// differ are the defaults that are not kube-proxy's, for documented reasons.
var differ = map[string]string{
	"proxy-mode": "auto", "detect-local-mode": "ClusterCIDR", // what the empty one means
	"iptables-localhost-nodeports": "false", "iptables-min-sync-period": "0s", "ipvs-min-sync-period": "0s",
}

func TestFlagsAreKubeProxys(t *testing.T) {
	f, err := os.Open("testdata/kube-proxy-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fs := newRun().Flags()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, preset, _ := strings.Cut(lines.Text(), " ")
		if name == "#" || name == "help" || name == "version" { // cobra's, see verb
			continue
		}
		n++
		if want, ok := differ[name]; ok {
			preset = want
		}
		if g := fs.Lookup(name); g == nil || g.DefValue != preset {
			t.Errorf("--%s: %+v, want the default %q", name, g, preset)
		}
	}
	if n < 60 {
		t.Errorf("only %d flags", n)
	}
}

// command parses a command line of run and builds its configuration.
func command(t *testing.T, args ...string) (*config.Config, config.Report) {
	t.Helper()
	var f configFlags
	var verb cobra.Command
	fs := verb.Flags()
	f.register(&verb)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.config(); err != nil && !errors.As(err, new(usageError)) {
		t.Fatal(err)
	}
	return f.build(f.text)
}

// Each flag sets its value in the configuration.
func TestEveryFlagRoundTrips(t *testing.T) {
	texts := map[string]string{
		"proxy-mode": "nftables", "source-vip": "10.1.2.3", "bind-address": "192.0.2.7", "detect-local-mode": "NodeCIDR",
		"cluster-cidr": "10.244.0.0/16,fd00::/48", "healthz-bind-address": "[::]:1234", "metrics-bind-address": "127.0.0.1:1235",
		"trace-endpoint": "https://collector.example:4318", "logging-format": "json", "log-level": "warn", "winkernel-source-ranges": "trust", "winkernel-dynamic-ports": "8192", "endpoint-failover": "observe", "accelerate": "flowtable", "hostname-override": "node-7", "service-node-port-range": "80-32767",
	}
	kinds := map[config.Kind]string{
		config.Bool: "true", config.Int: "7", config.Number: "2.5", config.Duration: "25s", config.Interval: "7s", config.Quantity: "4Ki",
		config.Map: "Alpha=true,Beta=false", config.Modules: "a=1,b*=2", config.List: "10.0.0.0/8,fd00::/8", config.Text: "text",
	}
	for _, s := range config.Settings() {
		if s.Flag == "" || s.Deprecated != "" {
			continue
		}
		preset := config.Default()
		word, ok := texts[s.Flag]
		if !ok {
			word = kinds[s.Value(&preset).Kind]
		}
		for _, mode := range []config.Mode{config.Auto, config.NFTables, "ipvs", "kernelspace"} {
			if s.Counts != nil && !s.Counts(mode) {
				continue
			}
			var f configFlags
			var verb cobra.Command
			fs := verb.Flags()
			f.register(&verb)
			if err := fs.Parse([]string{"--" + s.Flag + "=" + word}); err != nil {
				t.Fatal(err)
			}
			if s.Flag != "proxy-mode" {
				f.given = append(f.given, config.Assignment{Name: "--proxy-mode", Words: []string{string(mode)}})
			}
			c, r := config.Build(config.Input{Flags: f.given})
			if got := s.Value(c).String(); got != word || r.Err() != nil {
				t.Errorf("--%s=%s in mode %s: %q, %v", s.Flag, word, mode, got, r.Err())
			}
		}
	}
}

// Command lines that are in use.
func TestCommandLinesOfDistributions(t *testing.T) {
	dir := t.TempDir()
	kubeadm, err := os.ReadFile("../../core/config/file/testdata/kubeadm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "config.conf")
	if err := os.WriteFile(conf, kubeadm, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		line, notes string
		check       func(*config.Config) bool
	}{
		"kubeadm": {"--config=" + conf + " --hostname-override=Node-1", "", func(c *config.Config) bool {
			return c.NodeName == "node-1" && c.API.Kubeconfig == "/var/lib/kube-proxy/kubeconfig.conf" && len(c.ClusterCIDRs) == 1
		}},
		"k3s": {
			"--cluster-cidr=10.42.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s --conntrack-tcp-timeout-established=0s " +
				"--healthz-bind-address=127.0.0.1 --hostname-override=server --kubeconfig=/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig --proxy-mode=nftables", "",
			func(c *config.Config) bool {
				return c.HealthAddress == "127.0.0.1:10256" && c.Conntrack.MaxPerCore == 0 && *c.Conntrack.TCPEstablished == 0 && c.Mode == "nftables"
			},
		},
		"underscores and -v": {"--proxy_mode nftables -v 4 --masquerade_all --node=n --vmodule=a=1 --vmodule=b=2", "", func(c *config.Config) bool {
			return c.MasqueradeAll && c.Logging.Verbosity == 4 && c.NodeName == "n" && slices.Equal(c.Logging.Modules, []string{"a=1", "b=2"})
		}},
		"lists by several flags": {
			"--nodeport-addresses=10.0.0.0/8 --nodeport-addresses=fd00::/8,11.0.0.0/8 --feature-gates=A=true,B=false", "--feature-gates: A=true,B=false has no effect: Tandem has no such feature gate",
			func(c *config.Config) bool { return len(c.NodePorts.Prefixes) == 3 },
		},
		"the last one counts": {
			"--cluster-cidr=10.0.0.0/8 --cluster-cidr=11.0.0.0/8 --masquerade-all --masquerade-all=false", "",
			func(c *config.Config) bool {
				return len(c.ClusterCIDRs) == 1 && c.ClusterCIDRs[0].String() == "11.0.0.0/8" && !c.MasqueradeAll
			},
		},
	} {
		c, r := command(t, strings.Fields(test.line)...)
		var notes []string
		for _, n := range r.Notes {
			notes = append(notes, n.String())
		}
		if r.Err() != nil || strings.Join(notes, "\n") != test.notes || !test.check(c) {
			t.Errorf("%s: %v, notes %v, %+v", name, r.Err(), notes, c)
		}
	}
}

func TestUnknownFlagsAreAllReported(t *testing.T) {
	code, _, stderr := tandem(t, "run", "--proxy-mod", "x", "--manifests=d", "--nonsense=1", "-v=2")
	if code != exitUsage || !strings.Contains(stderr, "--proxy-mod: did you mean --proxy-mode?") || !strings.Contains(stderr, "--nonsense") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestEmptyArgumentsAreNone(t *testing.T) {
	if code, _, stderr := tandem(t, "run", "", "--write-config-to", filepath.Join(t.TempDir(), "c"), ""); code != exitOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestStrictAndLenient(t *testing.T) {
	conf := filepath.Join(folder(t, map[string]string{"c.conf": "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmod: iptables\niptables:\n  masqueradeBit: 40\n"}), "c.conf")
	code, _, stderr := tandem(t, "config", "check", conf, "--proxy-mode=nftables")
	for _, part := range []string{
		conf + ":3: mod: unknown field: did you mean mode?", conf + ":5: iptables.masqueradeBit: 40 is outside 0 to 31",
		"! --proxy-mode: is ignored, since there is a --config",
	} {
		if !strings.Contains(stderr, part) {
			t.Errorf("%q is missing in\n%s", part, stderr)
		}
	}
	if code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	for _, args := range [][]string{{"--config", conf}, {"--config", conf, "--compat=lenient"}} { // the default, as in kube-proxy
		_, r := command(t, args...)
		if len(r.Problems) != 1 || r.Notes[0].Text != "unknown field: did you mean mode?; an error with --compat=strict" {
			t.Errorf("lenient: %+v", r)
		}
	}
	if _, r := command(t, "--config", conf, "--compat=strict"); len(r.Problems) != 2 {
		t.Errorf("strict: %+v", r)
	}
	if _, r := command(t, "--compat=none"); len(r.Problems) != 1 {
		t.Errorf("no such compat: %+v", r)
	}
}

// A file that kube-proxy starts with starts here: unknown fields and gates are one
// warning each.
func TestFilesOfKubeProxyStart(t *testing.T) {
	conf := filepath.Join(folder(t, map[string]string{"c.conf": `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
featureGates: {SomeGateOfTomorrow: true, SupportIPVSProxyMode: false}
ipvs: {scheduler: rr, unknown: 1}
ofTomorrow: {a: 1}
mode: iptables
mode: nftables
`}), "c.conf")
	c, r := command(t, "--config", conf, "--hostname-override=n")
	if r.Err() != nil || c.Mode != config.NFTables {
		t.Fatalf("mode %s, %v", c.Mode, r.Err())
	}
	for _, want := range []string{":3: featureGates: ", ":4: ipvs.unknown: ", ":5: ofTomorrow: ", ":7: mode: duplicate key"} {
		n := 0
		for _, note := range r.Notes {
			if strings.Contains(note.String(), want) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%q is printed %d times: %v", want, n, r.Notes)
		}
	}
}

// The page of differences names every default that differs, and is where README, log
// and config check print.
func TestDifferencesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../core/manual/pages/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	title, _, _ := strings.Cut(strings.TrimPrefix(string(page), "# "), "\n")
	if code, shown, _ := tandem(t, strings.Fields(differencesPage)[1:]...); code != exitOK || !strings.Contains(shown, title) {
		t.Errorf("%s shows another page: exit code %d\n%s", differencesPage, code, shown)
	}
	for flag, names := range map[string]string{
		"proxy-mode": "mode, when none is named", "detect-local-mode": "", // ClusterCIDR is what kube-proxy's empty one means
		"iptables-localhost-nodeports": "iptables.localhostNodePorts", "iptables-min-sync-period": "minSyncPeriod", "ipvs-min-sync-period": "minSyncPeriod",
	} {
		if _, ok := differ[flag]; !ok || !strings.Contains(string(page), names) {
			t.Errorf("--%s: %q is not on the page", flag, names)
		}
	}
	if len(differ) != 5 {
		t.Errorf("%d defaults differ: is each on the page?", len(differ))
	}
	if readme, err := os.ReadFile("../../README.md"); err != nil || !strings.Contains(string(readme), "core/manual/pages/differences.md") {
		t.Error("README does not link the page", err)
	}
	conf := filepath.Join(folder(t, map[string]string{"c.conf": "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"}), "c.conf")
	if code, stdout, _ := tandem(t, "config", "check", conf); code != exitOK || !strings.Contains(stdout, differencesPage) {
		t.Errorf("config check: %d\n%s", code, stdout)
	}
}

// What kube-proxy rejects is rejected.
func TestRefusedAsInKubeProxy(t *testing.T) {
	for _, arg := range []string{
		"--healthz-bind-address=10.10.10.10:0", "--metrics-bind-address=10.10.10.10:0", "--metrics-bind-address=[::1]:65536", "--hostname-override=  ",
	} {
		if _, r := command(t, arg); len(r.Problems) != 1 {
			t.Errorf("%s: %+v", arg, r)
		}
	}
}

// A host name that nothing overrides is not written, so that a file fits every node.
func TestWrittenFilesNameNoHost(t *testing.T) {
	for args, want := range map[string]string{"": `hostnameOverride: ""`, "--hostname-override=Node-7": `hostnameOverride: "node-7"`} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		code, _, stderr := tandem(t, append([]string{"run", "--write-config-to", path}, strings.Fields(args)...)...)
		text, err := os.ReadFile(path)
		if code != exitOK || err != nil || !strings.Contains(string(text), want+"\n") {
			t.Errorf("%s: exit code %d, %s, %v\n%s", args, code, stderr, err, text)
		}
	}
}

// What follows -- are no flags of the verb: they are not reported among those that it does not know.
func TestUnknownFlagsEndAtTheDashes(t *testing.T) {
	code, _, stderr := tandem(t, "test", "connectivity", "--proxi-mode", "nftables", "--", "--masquerade-all")
	if code != exitUsage || !strings.Contains(stderr, "--proxi-mode: did you mean --proxy-mode?") || strings.Contains(stderr, "masquerade-all") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// A service starts in another folder: all files that its flags name have absolute paths.
func TestInstalledPathsAreAbsolute(t *testing.T) {
	var flags configFlags
	c := &cobra.Command{}
	flags.register(c)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config", "kubeconfig", "manifests", "record-hns"} {
		if err := c.Flags().Set(name, "file"); err != nil {
			t.Fatal(err)
		}
		if args := given(c.Flags()); !slices.Contains(args, "--"+name+"="+filepath.Join(here, "file")) {
			t.Errorf("--%s: %q", name, args)
		}
	}
}
