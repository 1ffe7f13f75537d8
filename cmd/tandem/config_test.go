// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestExplainGolden(t *testing.T) {
	code, got, stderr := tandem(t, "config", "explain")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, name := range []string{"iptables.masqueradeBit", "--healthz-port", "--compat", "featureGates", "conntrack"} {
		code, text, stderr := tandem(t, "config", "explain", name)
		if code != exitOK {
			t.Fatalf("%s: exit code %d: %s", name, code, stderr)
		}
		got += "\n$ tandem config explain " + name + "\n" + text
	}
	const path = "testdata/explain.txt"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != got {
		t.Errorf("%s differs (%v); if that is right, run the test with -update:\n%s", path, err, got)
	}
}

func TestExplainUnknown(t *testing.T) {
	code, _, stderr := tandem(t, "config", "explain", "masqueradebitt")
	if code != exitUsage || !strings.Contains(stderr, "did you mean masqueradeBit?") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, stdout, _ := tandem(t, "config", "explain", "--help"); code != exitOK || !strings.Contains(stdout, "Usage:") {
		t.Errorf("help: %d\n%s", code, stdout)
	}
}

// The defaults are a configuration without fault, and what is written is what
// was requested.
func TestWriteConfigAndCheck(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "written.yaml")
	code, _, stderr := tandem(t, "run", "--write-config-to", path, "--proxy-mode=nftables", "--cluster-cidr=10.0.0.0/8", "--node=n")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	code, stdout, stderr := tandem(t, "config", "check", path)
	if code != exitOK || stderr != "" || stdout != "the configuration is valid: mode nftables, node n\ndifferences from kube-proxy: "+differencesPage+"\n" {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	_, defaults, _ := tandem(t, "config", "defaults")
	if err := os.WriteFile(path, []byte(defaults), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := tandem(t, "config", "check", "--config", path); code != exitOK || stderr != "" || !strings.Contains(stdout, "mode auto") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	for _, args := range [][]string{{"config", "check", path, path}, {"config", "check", path, "--config", path}, {"config", "defaults", "x"}, {"config", "bogus"}} {
		if code, _, _ := tandem(t, args...); code != exitUsage {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
	if code, _, stderr := tandem(t, "config", "check", filepath.Join(dir, "none")); code != exitFailure || !strings.Contains(stderr, "no such file") {
		t.Errorf("no file: exit code %d: %s", code, stderr)
	}
}

// The file to check may come from a pipe, of which a reader knows no path.
func TestCheckStandardInput(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, args := range [][]string{{"-"}, {"--config", "-"}, {"-", "--here", "--manifests", t.TempDir()}} {
		check := func(text string) (string, error) {
			var out, errs strings.Builder
			c := newConfigCheck()
			c.SetIn(strings.NewReader(text))
			c.SetOut(&out)
			c.SetErr(&errs)
			c.SetArgs(args)
			err := c.Execute()
			return out.String() + errs.String(), err
		}
		if out, err := check(head + "mode: nftables\n"); err != nil || !strings.HasPrefix(out, "the configuration is valid: mode nftables") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
		if _, err := check(head + "mode: nft\n"); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "-:3: ") {
			t.Errorf("%q: %v", args, err)
		}
		if _, err := check(strings.Repeat("#", 2<<20)); exitCode(err) != exitFailure || !strings.Contains(err.Error(), "larger than 1 MiB") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// With --here what a configuration names has to be on this machine, too.
func TestCheckHere(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, flag := range []string{"--kubeconfig", "--manifests"} {
		if code, _, stderr := tandem(t, "config", "check", "--node=n", flag, none); code != exitOK || !strings.Contains(stderr, none+" is not on this machine") {
			t.Errorf("%s on another machine: exit code %d: %s", flag, code, stderr)
		}
		if code, _, stderr := tandem(t, "config", "check", "--here", "--node=n", flag, none); code != exitUsage || !strings.Contains(stderr, none) {
			t.Errorf("%s: exit code %d: %s", flag, code, stderr)
		}
	}
	if code, _, stderr := tandem(t, "config", "check", "--here", "--node=n", "--manifests", filepath.Dir(none)); code != exitOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// A service reads its file and one source of Services: with manifests no kubeconfig, neither at
// its start nor where it is checked.
func TestInputs(t *testing.T) {
	names := func(f configFlags, c config.Config) (all []string) {
		for _, in := range f.inputs(&c) {
			all = append(all, in.name+" "+in.path)
		}
		return all
	}
	with := config.Config{Manifests: "m", API: config.API{Kubeconfig: "k"}}
	if got := strings.Join(names(configFlags{file: "f"}, with), ", "); got != "--config f, --manifests m" {
		t.Error(got)
	}
	with.Manifests = ""
	if got := strings.Join(names(configFlags{}, with), ", "); got != "clientConnection.kubeconfig k" {
		t.Error(got)
	}
}

func TestVersionFlag(t *testing.T) {
	for _, line := range []string{"kube-proxy --version", "tandem --version=raw", "tandem --v=2 --version"} {
		if got := verb(strings.Fields(line)); len(got) != 1 || got[0] != "--version" {
			t.Errorf("%s: %v", line, got)
		}
	}
	var out bytes.Buffer
	code := run(t.Context(), []string{"/usr/local/bin/kube-proxy", "--version"}, &out, &out)
	if !regexp.MustCompile(`^Kubernetes v1\.\d+\.\d+\+tandem\.[0-9A-Za-z.-]+\n$`).MatchString(out.String()) || code != exitOK {
		t.Errorf("kube-proxy --version: %d, %q", code, &out)
	}
	if got := kubeProxyVersion("v0.9.0-3-gab_c+dirty"); got != "Kubernetes v"+metrics.Kubernetes+"+tandem.0.9.0-3-gab-c-dirty" {
		t.Error(got)
	}
	if code, stdout, _ := tandem(t, "--version"); code != exitOK || stdout == "" {
		t.Errorf("%d %q", code, stdout)
	}
	if _, help, _ := tandem(t, "--help"); strings.Contains(help, "-v,") || !strings.Contains(help, "--version") { // -v is the verbosity, as in kube-proxy
		t.Errorf("flags of the version:\n%s", help)
	}
}

// proxy is a running proxy that only records its calls. It can change to one
// other mode.
type proxy struct {
	base     *config.Config
	can      config.Mode
	configs  []*config.Config
	problems [][]config.Finding
}

func (p *proxy) Reconfigure(c *config.Config, _ string) (*config.Config, []config.Change) {
	p.configs = append(p.configs, c)
	if c.Mode == p.can {
		p.base = c
	}
	_, restart := config.Diff(p.base, c)
	return config.Merge(p.base, c), restart
}

func (p *proxy) Misconfigured(fs []config.Finding, where string) { p.problems = append(p.problems, fs) }

func TestReload(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	var out bytes.Buffer
	f := configFlags{file: "c.conf", compat: strict, given: []config.Assignment{{Name: "--hostname-override", Words: []string{"n"}}}}
	running, r := f.build([]byte(head))
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	p := proxy{base: running, can: "ipvs"}
	re := reloader{flags: &f, running: running, proxy: &p, log: newLog(&out, running)}

	re.changed([]byte(head + "mode: nftables\nlogging: {verbosity: 4}\n"))
	if len(p.configs) != 1 || re.log.level.Level() != slog.LevelInfo || !strings.Contains(out.String(), `restart="mode `) {
		t.Errorf("a new mode: %d, level %s\n%s", len(p.configs), re.log.level.Level(), &out)
	}
	re.changed([]byte(head + "clusterCIDR: 10.0.0.0/8\nlogging: {verbosity: 4}\n"))
	if len(p.configs) != 2 || p.configs[1].NodeName != "n" || re.log.level.Level() != slog.LevelDebug {
		t.Errorf("live: %d, level %s", len(p.configs), re.log.level.Level())
	}
	re.changed([]byte(head + "clusterCIDR: nonsense\nfoo: 1\n"))
	if len(p.configs) != 2 || len(p.problems) != 1 || len(p.problems[0]) != 2 {
		t.Errorf("mistakes are ignored: %d, %v", len(p.configs), p.problems)
	}
	re.changed([]byte(head))
	if len(p.configs) != 3 || re.log.level.Level() != slog.LevelInfo {
		t.Errorf("and back: %d, level %s", len(p.configs), re.log.level.Level())
	}
	out.Reset()
	re.changed([]byte(head + "mode: ipvs\nlogging: {verbosity: 4}\n"))
	if text := out.String(); re.log.level.Level() != slog.LevelDebug || !strings.Contains(text, "applied=\"mode logging.verbosity\" restart=\"\"") {
		t.Errorf("a mode that can be changed: level %s\n%s", re.log.level.Level(), text)
	}
}

// A reload leaves the machine's name as the Node's where nothing overrides it: else all
// endpoints would seem to be on other nodes.
func TestReloadKeepsTheHostName(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	var out bytes.Buffer
	f := configFlags{file: "c.conf", compat: strict}
	running, r := f.build([]byte(head))
	if r.Err() != nil || running.NodeName == "" {
		t.Fatal(r.Err(), running.NodeName)
	}
	name := running.NodeName
	p := proxy{base: running}
	re := reloader{flags: &f, running: running, proxy: &p, log: newLog(&out, running)}
	for _, text := range []string{"", "logging: {verbosity: 4}\n", "hostnameOverride: other\n", ""} {
		re.changed([]byte(head + text))
		if host := resolve.Host(re.running, nil, nil, model.Machine{}); host.Name != name || !re.running.NodeIsHost {
			t.Errorf("%q: node %q, want %q", text, host.Name, name)
		}
		if restart := strings.Contains(out.String(), `restart="hostnameOverride"`); restart != (text == "hostnameOverride: other\n") {
			t.Errorf("%q: %s", text, &out)
		}
		out.Reset()
	}
}

// Data planes that are handed no log write into that of the process: a Windows
// service has no other place where anybody would see it.
func TestLogIsTheDefault(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	var out bytes.Buffer
	c := config.Default()
	newLog(&out, &c)
	slog.Warn("from a data plane")
	slog.Debug("silent")
	if text := out.String(); !strings.Contains(text, `] "from a data plane"`) || strings.Contains(text, "silent") {
		t.Errorf("log:\n%s", text)
	}
}

// The log in JSON has kube-proxy's keys, and klog writes into it, as much as it
// was set to.
func TestLogJSON(t *testing.T) {
	var out bytes.Buffer
	c := config.Default()
	c.Logging.Format, c.Logging.Modules = "json", []string{"config_test=6"}
	log := newLog(&out, &c)
	log.Error("bad", "err", errors.New("why"))
	log.Debug("silent")
	klog.InfoS("from klog", "key", "value")
	klog.V(6).InfoS("enabled by vmodule")
	c.Logging.Modules = nil
	log.set(&c)
	klog.V(6).InfoS("silent")
	klog.FromContext(t.Context()).V(8).Info("silent")
	var got []map[string]any
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		got = append(got, m)
	}
	if len(got) != 3 || got[0]["err"] != "why" || got[1]["msg"] != "from klog" || got[1]["key"] != "value" || got[2]["msg"] != "enabled by vmodule" {
		t.Errorf("got %v", got)
	}
	if ts, ok := got[0]["ts"].(float64); !ok || ts < 1e12 {
		t.Errorf("ts: %v", got[0]["ts"])
	}
}

// A check has all forms, with its mistakes in the document, too.
func TestConfigCheckOutput(t *testing.T) {
	for _, c := range []struct {
		flag     string
		code     int
		valid    bool
		mistakes string
	}{
		{"--hostname-override=node-1", exitOK, true, ""},
		{"--proxy-mode=nonsense", exitUsage, false, "nonsense"},
	} {
		code, stdout, stderr := tandem(t, "config", "check", "--manifests", t.TempDir(), c.flag, "-o", "json")
		var d configDocument
		if err := json.Unmarshal([]byte(stdout), &d); err != nil || code != c.code || d.Valid != c.valid || !strings.Contains(strings.Join(d.Mistakes, "\n"), c.mistakes) {
			t.Errorf("%s: exit code %d, %v:\n%s%s", c.flag, code, err, stdout, stderr)
		}
		if c.valid && (d.Node != "node-1" || d.Mode == "") {
			t.Errorf("%+v", d)
		}
	}
	if code, stdout, _ := tandem(t, "config", "check", "--manifests", t.TempDir(), "--hostname-override=node-1", "-o", "yaml"); code != exitOK || !strings.Contains(stdout, "valid: true") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
}
