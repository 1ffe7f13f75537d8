// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const chart = "../chart"

func load(t *testing.T) *v2.Chart {
	t.Helper()
	c, err := loader.LoadDir(chart)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// options are the ways in which the chart is used.
func options() map[string]map[string]any {
	return map[string]map[string]any{
		"default":           nil,
		"own configuration": own(),
		"Linux only":        {"windows": map[string]any{"enabled": false}},
		"Windows only":      {"linux": map[string]any{"enabled": false}},
		"other pods":        pods(),
		"monitoring":        {"prometheusRule": map[string]any{"enabled": true}, "dashboard": map[string]any{"enabled": true}},
		"routes":            {"gatewayRoutes": true},
		"kubectl":           {"kubectl": map[string]any{"enabled": true}, "config": map[string]any{"existing": "", "apiServer": "https://192.0.2.10:6443"}},
		"cleanup":           {"cleanup": true},
		"DSR":               {"windows": map[string]any{"enableDSR": true}},
		"DSR as a field":    {"windows": map[string]any{"settings": map[string]any{"winkernel": map[string]any{"enableDSR": true}}}},
	}
}

// pods are values for pods that differ from the default ones.
func pods() map[string]any {
	set := func() map[string]any {
		return map[string]any{
			"extraArgs": []any{"--v=2"}, "extraEnv": []any{map[string]any{"name": "GOMAXPROCS", "value": "2"}},
			"nodeSelector": map[string]any{"pool": "edge", "kubernetes.io/os": "another"}, "affinity": map[string]any{"nodeAffinity": map[string]any{}},
			"tolerations":    []any{map[string]any{"key": "edge", "operator": "Exists"}},
			"updateStrategy": map[string]any{"type": "OnDelete", "rollingUpdate": nil},
			"annotations":    map[string]any{"of": "set"}, "podAnnotations": map[string]any{"of": "pod"}, "podLabels": map[string]any{"team": "net", "kubernetes.io/os": "another"},
		}
	}
	return map[string]any{"nameOverride": "edge-proxy", "fullnameOverride": "edge", "commonLabels": map[string]any{"cost": "infra"}, "linux": set(), "windows": set()}
}

// TestPods checks what the values of pods do to the DaemonSets, and that the default
// ones run on every node.
func TestPods(t *testing.T) {
	for _, os := range []string{"linux", "windows"} {
		name := map[string]string{"linux": "edge", "windows": "edge-windows"}[os]
		set := daemonSet(t, pods(), name)
		spec := set.Spec.Template.Spec
		for what, ok := range map[string]bool{
			"nodeSelector":   maps.Equal(spec.NodeSelector, map[string]string{"pool": "edge", "kubernetes.io/os": os}),
			"tolerations":    len(spec.Tolerations) == 1 && spec.Tolerations[0].Key == "edge",
			"affinity":       spec.Affinity != nil,
			"updateStrategy": set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType && set.Spec.UpdateStrategy.RollingUpdate == nil,
			"annotations":    set.Annotations["of"] == "set" && spec.ServiceAccountName == "edge",
			"podAnnotations": set.Spec.Template.Annotations["of"] == "pod",
			"selector":       maps.Equal(set.Spec.Selector.MatchLabels, map[string]string{"app.kubernetes.io/name": "edge-proxy", "kubernetes.io/os": os}),
			"commonLabels":   set.Labels["cost"] == "infra" && set.Spec.Template.Labels["cost"] == "infra",
			"podLabels":      set.Spec.Template.Labels["team"] == "net" && set.Spec.Template.Labels["kubernetes.io/os"] == os,
			"extraArgs":      slices.Contains(spec.Containers[0].Args, "--v=2"),
		} {
			if !ok {
				t.Errorf("%s: %s has no effect: %+v", os, what, set)
			}
		}
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMAXPROCS" && e.Value == "2" }) {
				t.Errorf("%s: container %s has not extraEnv: %+v", os, c.Name, c.Env)
			}
		}
		name = map[string]string{"linux": "tandem", "windows": "tandem-windows"}[os]
		set = daemonSet(t, nil, name)
		spec = set.Spec.Template.Spec
		if !maps.Equal(spec.NodeSelector, map[string]string{"kubernetes.io/os": os}) || len(spec.Tolerations) != 1 || spec.Tolerations[0] != (corev1.Toleration{Operator: corev1.TolerationOpExists}) ||
			set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String() != "10%" || !maps.Equal(set.Spec.Selector.MatchLabels, map[string]string{"app.kubernetes.io/name": "tandem", "kubernetes.io/os": os}) {
			t.Errorf("%s: the default one is %+v", os, set)
		}
		for _, label := range []string{"name", "instance", "version", "component", "part-of", "managed-by"} {
			if set.Labels["app.kubernetes.io/"+label] == "" || (set.Spec.Template.Labels["app.kubernetes.io/"+label] == "") != (label == "version") {
				t.Errorf("%s: label app.kubernetes.io/%s is not on the set alone if it is the version, and else on its pods, too", os, label)
			}
		}
	}
}

// daemonSet renders the chart and returns a DaemonSet, decoded strictly.
func daemonSet(t *testing.T, values map[string]any, name string) appsv1.DaemonSet {
	t.Helper()
	files, err := render(load(t), values)
	if err != nil {
		t.Fatal(err)
	}
	text, ok := objects(t, strings.Join(sorted(files), "---\n"))["DaemonSet "+name]
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(text), &set); err != nil || !ok {
		t.Fatalf("DaemonSet %s: %v", name, err)
	}
	return set
}

// TestReadme checks that the chart's README has a row for every value, with its default.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") && len(cells) == 3 {
			have[strings.Trim(cells[0], "| `")] = strings.Trim(cells[1], "`")
		}
	}
	want := map[string]string{}
	leaves(t, "", load(t).Values, want)
	for name, value := range want {
		if got, ok := have[name]; !ok || got != value {
			t.Errorf("default of %s in the README is %q; it is %q (in the table: %t)", name, got, value, ok)
		}
		delete(have, name)
	}
	if len(have) > 0 || len(want) < 30 {
		t.Errorf("README has values that do not exist: %v", have)
	}
}

// leaves flattens values into paths and their JSON. A map in a map of a system, such as
// resources, is one value.
func leaves(t *testing.T, path string, values map[string]any, all map[string]string) {
	t.Helper()
	for key, value := range values {
		if m, ok := value.(map[string]any); ok && len(m) > 0 && path == "" {
			leaves(t, key+".", m, all)
			continue
		}
		js, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		all[path+key] = string(js)
	}
}

func TestLint(t *testing.T) {
	for name, values := range options() {
		for _, m := range lint.RunAll(chart, values, namespace).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// TestPlain checks that the files next to the chart are those it renders to.
func TestPlain(t *testing.T) {
	files, err := beside(load(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join("..", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the chart makes (%v); go run . in this folder writes it", name, err)
		}
	}
	have, err := filepath.Glob("../kustomize/*")
	if err != nil {
		t.Fatal(err)
	}
	if len(have) != len(files)-len([]string{"tandem.yaml", "testdata/own.yaml"}) {
		t.Errorf("kustomize has %v, and the chart renders: %v", have, slices.Sorted(maps.Keys(files)))
	}
}

// TestKustomize lets kustomize build its base, and compares with the plain file.
func TestKustomize(t *testing.T) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../kustomize")
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := os.ReadFile("../tandem.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, want := objects(t, string(text)), objects(t, string(plain))
	if len(want) < 6 || len(got) != len(want) {
		t.Errorf("kustomize makes %d objects, the plain file has %d", len(got), len(want))
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("kustomize builds %s as\n%s\nand the plain file has\n%s", name, got[name], want[name])
		}
	}
}

func TestOptions(t *testing.T) {
	for name, values := range options() {
		files, err := render(load(t), values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		all := strings.Join(slices.Collect(maps.Values(files)), "---\n")
		objects(t, all)
		expect := func(holds bool, text string) {
			t.Helper()
			if strings.Contains(all, text) != holds {
				t.Errorf("%s: %q in the manifests: %t", name, text, !holds)
			}
		}
		own := name == "own configuration"
		expect(own || name == "kubectl", "server: https://192.0.2.10:6443")
		expect(own || name == "kubectl", "metricsBindAddress: 0.0.0.0:10249")
		for _, text := range []string{
			"resources: [tokenreviews]", "resources: [subjectaccessreviews]", "nonResourceURLs: [/status, /query]", "name: tandem-status",
			"resources: [serviceaccounts/token]", "resourceNames: [tandem-status]",
		} {
			expect(own || name == "kubectl", text)
		}
		expect(false, "update]") // Events are created and patched
		expect(own, "kind: PodMonitor")
		expect(name == "monitoring", "kind: PrometheusRule")
		expect(name == "monitoring", "alert: TandemRulesLate")
		expect(name == "monitoring", `grafana_dashboard: "1"`)
		expect(name == "routes", "resources: [tcproutes, udproutes, referencegrants]")
		expect(name == "routes", "- --gateway-routes")
		expect(own, "registry.example/tandem:v1-iptables")
		expect(own, "add: [NET_ADMIN, NET_RAW]")
		expect(own, "--log-level=debug")
		expect(own, "mode: nftables")
		// Off by default, as in kube-proxy: the CNI plug-in may have no loopback DSR.
		dsr := strings.HasPrefix(name, "DSR")
		expect(dsr, "enableDSR: true")
		expect(name == "cleanup", "args: [cleanup, --hold, --config=/var/lib/kube-proxy/config.conf]")
		expect(name != "cleanup", "- --hostname-override=$(NODE_NAME)")
		expect(!dsr && name != "Linux only", "enableDSR: false")
		every, err := texts(load(t), values)
		if err != nil {
			t.Fatal(err)
		}
		if notes := every["tandem/templates/NOTES.txt"]; strings.Contains(notes, "each load balancer takes 64") != (!dsr && name != "Linux only" && name != "cleanup") {
			t.Errorf("%s: the notes on DSR are %q", name, notes)
		}
		expect(name != "Linux only" && name != "other pods", "name: tandem-windows")
		expect(name != "Windows only", "kubernetes.io/os: linux")
	}
}

// TestMistakes: what cannot work is refused, with a word on what to do.
func TestMistakes(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"config.apiServer must name the API server": {"config": map[string]any{"existing": ""}},
		"additional properties 'imgae' not allowed": {"imgae": map[string]any{}},
		"does not match pattern":                    {"config": map[string]any{"apiServer": "192.0.2.10"}},
		"additional properties 'clusterCidr' not":   of(map[string]any{"clusterCidr": "10.244.0.0/16"}),
		"got string, want null or integer":          of(map[string]any{"iptables": map[string]any{"masqueradeBit": "14"}}),
		"mode=ipvs needs linux.iptables=true":       of(map[string]any{"mode": "ipvs"}),
		"kernelspace is a mode of Windows":          of(map[string]any{"mode": "kernelspace"}),
		"nothing would run":                         {"linux": map[string]any{"enabled": false}, "windows": map[string]any{"enabled": false}},
		"is a mode of Linux":                        {"windows": map[string]any{"settings": map[string]any{"mode": "nftables"}}},
		"has no effect with config.existing":        {"config": map[string]any{"settings": map[string]any{"mode": "nftables"}}},
		"is ignored beside a configuration file":    {"linux": map[string]any{"extraArgs": []any{"--proxy-mode=ipvs"}}},
		"cannot be reached by a PodMonitor":         with(of(map[string]any{"metricsBindAddress": "127.0.0.1:10249"}), "podMonitor", map[string]any{"enabled": true}),
		"probes would ask another port":             of(map[string]any{"healthzBindAddress": "0.0.0.0:10300"}),
	} {
		if _, err := render(load(t), values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// configMaps are those of a cluster, by name: their config.conf. It is the client that templates look them up with.
type configMaps struct {
	dynamic.NamespaceableResourceInterface
	conf map[string]string
}

func (c configMaps) GetClientFor(_, _ string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return c, true, nil
}

func (c configMaps) Namespace(string) dynamic.ResourceInterface { return c }

func (c configMaps) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	conf, ok := c.conf[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"config.conf": conf}}}, nil
}

// renderBeside renders the chart as Helm does that looks at a cluster, which has these ConfigMaps.
func renderBeside(t *testing.T, there map[string]string, values map[string]any) (map[string]string, error) {
	t.Helper()
	all, err := given(load(t), values)
	if err != nil {
		t.Fatal(err)
	}
	return engine.RenderWithClientProvider(load(t), all, configMaps{conf: there})
}

// TestExistingConfiguration: what cannot work beside the ConfigMap that is in the cluster is refused, too, where Helm has a
// cluster to look at.
func TestExistingConfiguration(t *testing.T) {
	monitored, tools := map[string]any{"podMonitor": map[string]any{"enabled": true}}, map[string]any{"linux": map[string]any{"iptables": true}}
	for _, c := range []struct {
		conf   string // empty: there is none
		values map[string]any
		want   string
	}{
		{"mode: nftables", nil, ""},
		{`mode: ""`, nil, ""},
		{"mode: ipvs", nil, "ConfigMap kube-proxy: mode=ipvs needs linux.iptables=true"},
		{"mode: ipvs", tools, ""},
		{"mode: kernelspace", nil, "ConfigMap kube-proxy: mode=kernelspace is a mode of Windows"},
		{`metricsBindAddress: ""`, monitored, "ConfigMap kube-proxy: metricsBindAddress=127.0.0.1:10249 cannot be reached by a PodMonitor"},
		{"metricsBindAddress: 0.0.0.0:10249", monitored, ""},
		{"healthzBindAddress: 0.0.0.0:10300", nil, "ConfigMap kube-proxy: healthzBindAddress=0.0.0.0:10300 is port 10300, and healthPort=10256"},
		{"healthzBindAddress: 0.0.0.0:10300", map[string]any{"healthPort": 10300}, ""},
		{"not: [YAML", nil, ""}, // which is for config check to say
		{"", nil, "config.existing=kube-proxy: namespace kube-system has no such ConfigMap"},
		{"", map[string]any{"config": map[string]any{"existing": "", "apiServer": "https://192.0.2.10:6443"}}, ""},
	} {
		there := map[string]string{"kube-root-ca.crt": ""}
		if c.conf != "" {
			there["kube-proxy"] = c.conf
		}
		_, err := renderBeside(t, there, c.values)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %v: want %q, got %v", c.conf, c.values, c.want, err)
		}
	}
}

// TestHealthPorts: the chart finds the port in healthzBindAddress that Tandem finds there, which a test of core/config
// reads of the same list, and wants probes to ask that one.
func TestHealthPorts(t *testing.T) {
	text, err := os.ReadFile("../testdata/health-addresses")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var address string
		var port int
		if _, err := fmt.Sscan(line, &address, &port); err != nil {
			continue // a comment
		}
		settings := map[string]any{"healthzBindAddress": address}
		if address == "-" {
			settings = map[string]any{}
		}
		for _, probed := range []int{port, port + 1, 1025, 300} {
			values := with(with(of(settings), "healthPort", probed), "windows", map[string]any{"enabled": false})
			right := probed == port || address == "-" // without one the chart writes the one that is probed
			if _, err := render(load(t), values); (err == nil) != right || err != nil && !strings.Contains(err.Error(), "probes would ask another port") {
				t.Errorf("%s with healthPort=%d: %v", address, probed, err)
			}
		}
	}
}

// TestHealthPortBesideAnExistingConfigMap: what the chart makes itself, such as the configuration of Windows nodes, answers
// where the probes ask.
func TestHealthPortBesideAnExistingConfigMap(t *testing.T) {
	files, err := render(load(t), map[string]any{"healthPort": 10300})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range files {
		if strings.Contains(text, "healthzBindAddress: 0.0.0.0:10300") {
			return
		}
	}
	t.Errorf("the configuration of Windows nodes has another port: %v", files)
}

// of are values for a configuration of the chart's own.
func of(settings map[string]any) map[string]any {
	return map[string]any{"config": map[string]any{"existing": "", "apiServer": "https://192.0.2.10:6443", "settings": settings}}
}

func with(values map[string]any, name string, value any) map[string]any {
	values[name] = value
	return values
}

// TestConfigurationRollsPods: pods are new ones when their configuration is another, and only then: the one that the
// chart makes, and the existing one where Helm has a cluster to look at.
func TestConfigurationRollsPods(t *testing.T) {
	sum := func(name string, values map[string]any) string {
		return daemonSet(t, values, name).Spec.Template.Annotations["checksum/config"]
	}
	ipv6 := of(map[string]any{"clusterCIDR": "2001:db8::/64"})
	if a, b := sum("tandem", of(map[string]any{"clusterCIDR": "10.244.0.0/16"})), sum("tandem", ipv6); a == b || a == "" || b != sum("tandem", ipv6) {
		t.Errorf("checksums %q and %q", a, b)
	}
	if got := sum("tandem", nil); got != "" {
		t.Errorf("an existing ConfigMap, which the chart does not know without a cluster, has the checksum %s", got)
	}
	existing := func(conf string) string {
		files, err := renderBeside(t, map[string]string{"kube-root-ca.crt": "", "kube-proxy": conf}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile("checksum/config: .*").FindString(files["tandem/templates/linux.yaml"])
	}
	if a, b := existing("metricsBindAddress: 127.0.0.1:10249"), existing("metricsBindAddress: 0.0.0.0:10249"); a == b || a == "" || b != existing("metricsBindAddress: 0.0.0.0:10249") {
		t.Errorf("an existing ConfigMap: checksums %q and %q", a, b)
	}
	dsr := map[string]any{"windows": map[string]any{"enableDSR": true}}
	if a, b := sum("tandem-windows", nil), sum("tandem-windows", dsr); a == b || a == "" {
		t.Errorf("checksums %q and %q", a, b)
	}
}

// TestOneOrder: the README of the chart, its notes and the guide name the steps of an installation in one order: the
// image, the end of kube-proxy, the roll-out.
func TestOneOrder(t *testing.T) {
	every, err := texts(load(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{"NOTES.txt": every["tandem/templates/NOTES.txt"]}
	for _, path := range []string{chart + "/README.md", "../../../core/manual/pages/kubeadm.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		pages[path] = string(text)
	}
	for name, text := range pages {
		at := -1
		for _, step := range []string{"pull", "patch daemonset kube-proxy --type merge", "rollout status daemonset/tandem"} {
			i := strings.Index(text, step)
			if i <= at {
				t.Errorf("%s: %q is not there, or comes too early", name, step)
			}
			at = i
		}
	}
}

// TestOrderOfTheWayBack: Tandem's pods go, then kube-proxy serves, and only then the rules are removed: by another
// installation, since there is no release to upgrade any more. The guides of other distributions lead there.
func TestOrderOfTheWayBack(t *testing.T) {
	const guides = "../../../core/manual/pages/"
	every, err := texts(load(t), nil)
	if notes := every["tandem/templates/NOTES.txt"]; err != nil || !strings.Contains(notes, "Once kube-proxy serves again, an installation with\ncleanup=true removes them: 'tandem docs kubeadm'") {
		t.Errorf("the notes say nothing of the rules that stay: %v\n%s", err, notes)
	}
	for path, head := range map[string]string{chart + "/README.md": "## Uninstall", guides + "kubeadm.md": "## Back"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, back, ok := strings.Cut(string(text), "\n"+head+"\n")
		if !ok {
			t.Errorf("%s has no %q", path, head)
		}
		for _, step := range []string{"helm uninstall tandem", `"op":"remove"`, "rollout status daemonset/kube-proxy", "helm install tandem", "--set cleanup=true", "rollout status daemonset/tandem ", "helm uninstall tandem"} {
			if _, back, ok = strings.Cut(back, step); !ok {
				t.Errorf("%s: %q is not there, or comes too early", path, step)
				break
			}
		}
	}
	for _, name := range []string{"aks", "eks", "k3s", "kubespray", "rke2", "talos"} { // kOps makes new nodes
		text, err := os.ReadFile(guides + name + ".md")
		_, back, _ := strings.Cut(string(text), "\n## Back\n")
		if err != nil || !strings.Contains(back, "(kubeadm.md#remove-the-rules): with the values above and `cleanup=true`") {
			t.Errorf("%s says nothing of the rules that stay: %v", name, err)
		}
	}
}

// objects returns the objects of a file as JSON, by kind and name.
func objects(t *testing.T, text string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var meta struct {
			Kind     string
			Metadata struct{ Name string }
		}
		js, err := yaml.YAMLToJSONStrict([]byte(doc + "\n"))
		if err == nil {
			err = yaml.Unmarshal(js, &meta)
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if meta.Kind != "" {
			all[meta.Kind+" "+meta.Metadata.Name] = string(js)
		}
	}
	return all
}

// TestTemplate renders the chart with settings as `helm template --set` takes them.
func TestTemplate(t *testing.T) {
	var b bytes.Buffer
	if err := template(chart, []string{"image.tag=v9", "linux.iptables=true", "linux.podLabels.k8s-app=kube-proxy"}, &b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`image: "ghcr.io/tandem-proxy/tandem:v9-iptables"`, "k8s-app: kube-proxy", "kind: DaemonSet", "kind: ClusterRole\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s", want)
		}
	}
	if err := template(chart, []string{"linux.nonsense=1"}, &b); err == nil {
		t.Error("an unknown value passes")
	}
}

// TestSELinuxType has the containers of Linux run as a type that is asked for.
func TestSELinuxType(t *testing.T) {
	options := func(values map[string]any) *corev1.SELinuxOptions {
		return daemonSet(t, values, "tandem").Spec.Template.Spec.Containers[0].SecurityContext.SELinuxOptions
	}
	if o := options(map[string]any{"linux": map[string]any{"seLinuxType": "spc_t"}}); o == nil || *o != (corev1.SELinuxOptions{Type: "spc_t"}) {
		t.Errorf("the type is %+v", o)
	}
	if o := options(nil); o != nil {
		t.Errorf("the default is %+v", o)
	}
}

// TestAppArmorProfile has the containers of Linux, and no other, confined by a profile that is asked for.
func TestAppArmorProfile(t *testing.T) {
	set := daemonSet(t, map[string]any{"linux": map[string]any{"appArmorProfile": "tandem"}}, "tandem")
	p := set.Spec.Template.Spec.Containers[0].SecurityContext.AppArmorProfile
	if p == nil || p.Type != "Localhost" || p.LocalhostProfile == nil || *p.LocalhostProfile != "tandem" {
		t.Errorf("the profile is %+v", p)
	}
	if p := daemonSet(t, nil, "tandem").Spec.Template.Spec.Containers[0].SecurityContext.AppArmorProfile; p != nil {
		t.Errorf("the default one is %+v", p)
	}
}
