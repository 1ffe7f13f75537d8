// SPDX-License-Identifier: Apache-2.0

package file_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// build decodes and builds a file that must be without mistakes.
func build(t *testing.T, text string) *config.Config {
	t.Helper()
	d := file.Decode("x.yaml", []byte(text))
	c, r := config.Build(config.Input{HasFile: true, File: d.Assignments})
	if all := slices.Concat(d.Problems, d.Lapses, r.Problems); len(all) > 0 {
		t.Fatalf("%v in:\n%s", all, text)
	}
	return c
}

// samples are values that are the default of nothing, by kind.
var samples = map[config.Kind][]string{
	config.Bool: {"true"}, config.Int: {"7"}, config.Number: {"2.5"}, config.Duration: {"25s"}, config.Interval: {"7s"},
	config.Quantity: {"4Ki"}, config.Map: {"Alpha=true", "Beta=false"}, config.Modules: {"reflector*=6"},
}

// sampleTexts are for the texts and lists that are not free.
var sampleTexts = map[string][]string{
	"mode": {"ipvs"}, "winkernel.sourceVip": {"10.1.2.3"}, "bindAddress": {"192.0.2.7"}, "detectLocalMode": {"NodeCIDR"},
	"clusterCIDR": {"10.244.0.0/16,fd00::/48"}, "nodePortAddresses": {"192.0.2.0/24", "2001:db8::/64"}, "ipvs.excludeCIDRs": {"10.0.0.0/8"},
	"healthzBindAddress": {"[::]:1234"}, "metricsBindAddress": {"127.0.0.1:1235"}, "logging.format": {"json"}, "iptables.localhostNodePorts": {"true"},
}

func sample(s *config.Setting) []string {
	if words, ok := sampleTexts[s.Path]; ok {
		return words
	}
	if words, ok := samples[s.Value(new(config.Config)).Kind]; ok {
		return words
	}
	return []string{"some-name"}
}

// mode returns one in which a setting counts.
func modeFor(s *config.Setting) config.Mode {
	for _, m := range []config.Mode{config.Auto, config.NFTables, "ipvs", "kernelspace"} {
		if s.Counts == nil || s.Counts(m) {
			return m
		}
	}
	return ""
}

// Each field goes from a file into the configuration, and from there into a
// file again, with the same content.
func TestEveryFieldRoundTrips(t *testing.T) {
	for _, s := range config.Settings() {
		if s.Path == "" {
			continue
		}
		want := config.Default()
		want.Mode = modeFor(&s)
		want.Complete()
		if err := s.Value(&want).Set(sample(&s)); err != nil {
			t.Errorf("%s: %v", s.Path, err)
			continue
		}
		text := file.Render(&want, false)
		agreed(t, text)
		got := build(t, string(text))
		if g := s.Value(got).Get(); !slices.Equal(g, sample(&s)) {
			t.Errorf("%s: wrote %v, read %v", s.Path, sample(&s), g)
		}
		if again := file.Render(got, false); string(again) != string(text) {
			t.Errorf("%s: written again it is different:\n%s\n%s", s.Path, text, again)
		}
	}
}

func TestDefaultsGolden(t *testing.T) {
	c := config.Default()
	got := file.Render(&c, true)
	golden(t, "testdata/defaults.yaml", string(got))
	if back := build(t, string(got)); string(file.Render(back, true)) != string(got) {
		t.Error("the defaults read as something else")
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("%s differs (%v); if that is right, run the test with -update:\n%s", path, err, got)
	}
}

// A kubeadm cluster's file is kube-proxy's Go struct written out: zeros and
// nulls mean that nothing is set.
func TestKubeadm(t *testing.T) {
	text, err := os.ReadFile("testdata/kubeadm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d := file.Decode("config.conf", text)
	c, r := config.Build(config.Input{HasFile: true, File: d.Assignments})
	if all := slices.Concat(d.Problems, d.Lapses, d.Notes, r.Problems, r.Notes); len(all) > 0 {
		t.Fatal(all)
	}
	want := config.Default()
	want.API.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	_ = find(t, "clusterCIDR").Value(&want).Set([]string{"10.244.0.0/16"})
	if live, restart := config.Diff(&want, c); len(live)+len(restart) > 0 {
		t.Errorf("%v %v", live, restart)
	}
}

func find(t *testing.T, name string) config.Setting {
	t.Helper()
	found := config.Find(name)
	if len(found) != 1 {
		t.Fatalf("%d settings %q", len(found), name)
	}
	return found[0]
}

// The ways to write a value that YAML has.
func TestNotations(t *testing.T) {
	for text, want := range map[string][2]string{
		"iptables: {masqueradeBit: 0x0f}":                                         {"iptables.masqueradeBit", "15"},
		"oomScoreAdj: 0":                                                          {"oomScoreAdj", "0"},
		"conntrack: {tcpBeLiberal: yes}":                                          {"conntrack.tcpBeLiberal", "true"},
		"nodePortAddresses: [primary]":                                            {"nodePortAddresses", "primary"},
		"nodePortAddresses:\n- 10.0.0.0/8\n- \"fd00::/8\"":                        {"nodePortAddresses", "10.0.0.0/8,fd00::/8"},
		"clusterCIDR: \"10.0.0.0/8, fd00::/8\"":                                   {"clusterCIDR", "10.0.0.0/8,fd00::/8"},
		"healthzBindAddress: 192.0.2.1":                                           {"healthzBindAddress", "192.0.2.1:10256"},
		"metricsBindAddress: \"::\"":                                              {"metricsBindAddress", "[::]:10249"},
		"bindAddress: \"::\"":                                                     {"healthzBindAddress", "[::]:10256"},
		"bindAddress: 2001:db8::1":                                                {"metricsBindAddress", "[::1]:10249"},
		"metricsBindAddress: 127.0.0.1:1\nbindAddress: \"::\"":                    {"metricsBindAddress", "127.0.0.1:1"},
		"hostnameOverride: Node-1.Example":                                        {"hostnameOverride", "node-1.example"},
		"logging: {flushFrequency: 5000000000}":                                   {"logging.flushFrequency", "5000000000ns"},
		"logging: {vmodule: [{filePattern: a, verbosity: 3}, {filePattern: b*}]}": {"logging.vmodule", "a=3,b*=0"},
		"x: &on true\nconntrack: {tcpBeLiberal: *on}":                             {},
		"{mode: nftables, nftables: {minSyncPeriod: 2s}}":                         {"nftables.minSyncPeriod", "2s"},
		"mode: nftables":                                                          {"nodePortAddresses", "primary"},
		"featureGates: {B: false, A: true}":                                       {"featureGates", "A=true,B=false"},
		"mode: \"\"\niptables: null\nlogging:\n":                                  {"mode", "auto"},
		"configSyncPeriod: 0s\nclientConnection: {burst: 0}":                      {"clientConnection.burst", "10"},
	} {
		if want[0] == "" {
			continue
		}
		full := head + text
		if strings.HasPrefix(text, "{") {
			full = "{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, " + text[1:]
		}
		c := build(t, full)
		agreed(t, []byte(full))
		if got := find(t, want[0]).Value(c).String(); got != want[1] {
			t.Errorf("%s: %s is %q, want %q", text, want[0], got, want[1])
		}
	}
}

// All mistakes are reported at once, each with its line.
func TestMistakes(t *testing.T) {
	for _, test := range []struct {
		name, text     string
		problems, laps []string
	}{
		{"empty", "", []string{"c.conf: is empty: it needs at least apiVersion: kubeproxy.config.k8s.io/v1alpha1 and kind: KubeProxyConfiguration"}, nil},
		{"no YAML", "a: [", []string{"c.conf:1: is not valid YAML: did not find expected node content"}, nil},
		{"a list", "- a", []string{"c.conf:1: is a list, must be a KubeProxyConfiguration"}, nil},
		{"other kind", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n", []string{
			"c.conf:2: kind: must be KubeProxyConfiguration", "c.conf:1: apiVersion: must be kubeproxy.config.k8s.io/v1alpha1",
		}, nil},
		{"newer version", "apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n", []string{
			"c.conf:1: apiVersion: must be kubeproxy.config.k8s.io/v1alpha1",
		}, nil},
		{"a ConfigMap", "apiVersion: v1\nkind: ConfigMap\ndata: {}\n", []string{"c.conf:2: kind: is a ConfigMap: use the file in it (data, config.conf)"}, nil},
		{"unknown and twice", head + "mod: ipvs\niptables:\n  masqueradebit: 3\n  syncPeriod: 1s\n  syncPeriod: 2s\nfoo.bar: 1\niptables.masqueradeAll: true\n", nil, []string{
			"c.conf:3: mod: unknown field: did you mean mode?",
			"c.conf:5: iptables.masqueradebit: unknown field: did you mean masqueradeBit?",
			"c.conf:7: iptables.syncPeriod: duplicate key, first in line 6: the last one is used",
			"c.conf:8: foo.bar: unknown field",
			"c.conf:9: iptables.masqueradeAll: unknown field",
		}},
		{"wrong types", head + "mode: 5\niptables: 7\nipvs: {excludeCIDRs: 10.0.0.0/8, strictARP: \"yes\"}\nconfigSyncPeriod: 30\noomScoreAdj: \"5\"\nhostnameOverride: [a]\nclientConnection: {qps: fast, burst: 1.5}\nfeatureGates: {A: 1}\nlogging: {vmodule: [{file: x}]}\n", []string{
			`c.conf:3: mode: "5" is a number, must be a text: put it in quotes, "5"`,
			`c.conf:4: iptables: "7" is a number, must be an object`,
			`c.conf:5: ipvs.excludeCIDRs: "10.0.0.0/8" is a string, must be a list of texts`,
			`c.conf:5: ipvs.strictARP: "yes" is a string, must be true or false`,
			"c.conf:6: configSyncPeriod: 30 has no unit: write 30s for seconds",
			`c.conf:7: oomScoreAdj: "5" is a string, must be a whole number`,
			"c.conf:8: hostnameOverride: is a list, must be a text",
			`c.conf:9: clientConnection.qps: "fast" is a string, must be a number`,
			`c.conf:9: clientConnection.burst: "1.5" is a fraction, must be a whole number`,
			`c.conf:10: featureGates: "1" is a number, must be true or false`,
			"c.conf:11: logging.vmodule: unknown field file",
		}, nil},
		{"two documents", head + "---\n" + head, nil, []string{"c.conf:3: a second document: only the first is read"}},
		{"a terminal's escape", head + "\"\\e[31m\": 1\n", nil, []string{`c.conf:3: "\x1b[31m": unknown field`}},
	} {
		d := file.Decode("c.conf", []byte(test.text))
		if got := lines(d.Problems); !slices.Equal(got, test.problems) {
			t.Errorf("%s: problems\n%s\nwant\n%s", test.name, strings.Join(got, "\n"), strings.Join(test.problems, "\n"))
		}
		if got := lines(d.Lapses); !slices.Equal(got, test.laps) {
			t.Errorf("%s: lapses\n%s\nwant\n%s", test.name, strings.Join(got, "\n"), strings.Join(test.laps, "\n"))
		}
	}
}

func lines(fs []config.Finding) (out []string) {
	for _, f := range fs {
		out = append(out, f.String())
	}
	return out
}

// A file that anybody may write is told: it can take over a privileged process.
func TestExposed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]int{0o644: 0, 0o646: 1} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if notes := file.Exposed(path); len(notes) != want && runtime.GOOS != "windows" {
			t.Errorf("%s: %v", mode, notes)
		}
	}
	if notes := file.Exposed(path + "-"); notes != nil {
		t.Errorf("a file that is not there: %v", notes)
	}
}

// What older kube-proxies knew is no mistake.
func TestRetiredFields(t *testing.T) {
	d := file.Decode("c.conf", []byte(head+"udpIdleTimeout: 250ms\nresourceContainer: /kube-proxy\n"))
	if len(d.Problems)+len(d.Lapses) > 0 || len(d.Notes) != 2 {
		t.Errorf("%+v", d)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir: "is not a regular file", filepath.Join(dir, "none"): "no such file", big: "is larger than 1 MiB", os.DevNull: "is not a regular file",
	} {
		if _, err := file.Read(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Nothing that a file can hold does harm, and what is taken can be written and
// read again.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"kubeadm.yaml", "kube-proxy.yaml", "defaults.yaml"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(head + "featureGates: &a {b: *a}\nlogging: {vmodule: [{filePattern: \"a=b\", verbosity: -1}]}"))
	f.Add([]byte(head + "conntrack: &x\n  min: 1\niptables: *x\nclusterCIDR: \"::ffff:10.0.0.0/104,\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d := file.Decode("f", text)
		c, r := config.Build(config.Input{HasFile: true, File: d.Assignments})
		if len(d.Problems)+len(d.Lapses)+len(r.Problems) > 0 {
			return
		}
		out := file.Render(c, false)
		back := file.Decode("f", out)
		again, r2 := config.Build(config.Input{HasFile: true, File: back.Assignments})
		if all := slices.Concat(back.Problems, back.Lapses, r2.Problems); len(all) > 0 {
			t.Fatalf("%v in\n%s\nfrom\n%s", all, out, text)
		}
		if live, restart := config.Diff(c, again); len(live)+len(restart) > 0 {
			t.Fatalf("%s\nfrom\n%s", fmt.Sprint(live, restart), text)
		}
	})
}
