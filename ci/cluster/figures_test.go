// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// report is what Ginkgo writes, in short.
const report = `[{"SpecReports": [
	{"LeafNodeType": "ReportBeforeSuite", "State": "passed"},
	{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "should serve", "State": "passed", "RunTime": 2500000000},
	{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "should fail", "State": "failed", "RunTime": 1000000000, "Failure": {"Message": "no answer\nfrom it"}},
	{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "in time", "State": "timedout", "Failure": {"Message": "late"}},
	{"ContainerHierarchyTexts": ["[sig-network] Zones"], "LeafNodeType": "It", "LeafNodeText": "needs more", "State": "skipped", "Failure": {"Message": "need 6 nodes"}},
	{"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "not asked for", "State": "skipped"}
]}]`

func TestReport(t *testing.T) {
	specs, err := parseReport([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	want := []spec{
		{"[sig-network] Services in time", failed, 0, "late"},
		{"[sig-network] Services should fail", failed, 1, "no answer"},
		{"[sig-network] Services should serve", passed, 2.5, ""},
		{"[sig-network] Zones needs more", skipped, 0, "need 6 nodes"},
	}
	if !reflect.DeepEqual(specs, want) {
		t.Errorf("specs %+v", specs)
	}
	// When the time of the whole run is over, what was cut short has not failed.
	specs, err = parseReport([]byte(strings.Replace(report, `[{`, `[{"SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"], `, 1)))
	if err != nil || specs[0].State != skipped || specs[1].State != failed {
		t.Errorf("%v, specs of a run that was cut short: %+v", err, specs)
	}
	if _, err := parseReport([]byte("<testsuites>")); err == nil {
		t.Error("another format passes")
	}
}

// TestFiguresRoundTrip writes figures and reads them back.
func TestFiguresRoundTrip(t *testing.T) {
	f := figures{Set: "network", Kubernetes: "1.34.10", Proxy: proxy{tandem, "iptables"}, Facts: map[string]string{factCPU: "3.1", factVersion: "v1.37.2"}, Specs: []spec{
		{"[sig-network] a", passed, 1.5, ""}, {"[sig-network] b", failed, 0, "what\twas"},
	}}
	var b bytes.Buffer
	if err := f.write(&b); err != nil {
		t.Fatal(err)
	}
	got, err := readFigures(b.Bytes())
	f.Specs[1].Reason = "what was" // no tab in a field
	if err != nil || !reflect.DeepEqual(got, f) {
		t.Errorf("%v, %+v of\n%s", err, got, b.String())
	}
	for _, bad := range []string{"pass\t1\n", "pass\tx\ty\tz\n"} {
		if _, err := readFigures([]byte(bad)); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

func sampleFigures() []figures {
	return []figures{
		{Set: "network", Proxy: proxy{kubeProxy, "nftables"}, Facts: map[string]string{factCPU: "5"}, Specs: []spec{{"[sig-network] a", passed, 3, ""}, {"[sig-network] b", failed, 1, "no"}}},
		{Set: "network", Proxy: proxy{tandem, "nftables"}, Facts: map[string]string{}, Specs: []spec{{"[sig-network] a", failed, 2, "late"}, {"[sig-network] b", failed, 1, "no"}, {"[sig-network] c", passed, 1, ""}}},
	}
}

// TestVersions: other versions of Kubernetes have a table of their own, and figures in files of their own.
func TestVersions(t *testing.T) {
	specs := []spec{{"[sig-network] a", passed, 3, ""}, {"[sig-network] b", failed, 1, "no"}}
	old := figures{Set: "versions", Kubernetes: "1.34.10", Proxy: proxy{tandem, "nftables"}, Facts: map[string]string{factVersion: "v1.34.10", factSeconds: "7"}, Specs: specs}
	now := figures{Set: "conformance", Proxy: proxy{tandem, "nftables"}, Facts: map[string]string{factVersion: "v1.37.2", factSeconds: "8"}, Specs: specs}
	all := []figures{now, {Set: "conformance", Proxy: proxy{tandem, "iptables"}, Facts: map[string]string{}}, old}
	if got := byVersion(all); !strings.HasSuffix(got, "|\n| 1.34.10 | tandem | nftables | 1 | 1 | 0 | 7 s |\n| 1.37.2 | tandem | nftables | 1 | 1 | 0 | 8 s |\n") {
		t.Error(got)
	}
	if got := summary(all); strings.Contains(got, "versions") {
		t.Error(got)
	}
	if got := failures(all); !strings.Contains(got, "- versions 1.34.10, tandem nftables: [sig-network] b: `no`\n") {
		t.Error(got)
	}
	if old.fileName() != "versions-tandem-nftables-1.34.10.tsv" || now.fileName() != "conformance-tandem-nftables.tsv" {
		t.Error(old.fileName(), now.fileName())
	}
}

func TestTables(t *testing.T) {
	all := sampleFigures()
	for _, c := range []struct{ got, want string }{
		{summary(all), "| network | kube-proxy | nftables | 1 | 1 | 0 | - | 5 s | - | - | - | - |\n"},
		{bySpec(all, "network"), "| a | 3 | fail |\n| b | fail | fail |\n| c | - | 1 |\n"},
		{failures(all), "- network, tandem nftables: [sig-network] a: `late`\n"},
		{failures(nil), "None."},
		{closing(all), "e2e: 1 of 3 pass, kube-proxy 1 of 2"},
		{closing(all[1:]), "e2e: 1 of 3 pass"},
	} {
		if !strings.Contains(c.got, c.want) {
			t.Errorf("no %q in\n%s", c.want, c.got)
		}
	}
	if got := worse(all); !reflect.DeepEqual(got, []string{"tandem nftables: [sig-network] a"}) {
		t.Errorf("worse than kube-proxy: %q", got)
	}
	if got := worse(all[1:]); len(got) != 2 {
		t.Errorf("without kube-proxy's: %q", got)
	}
}

// TestReadme writes the tables once more: README.md has those of the figures in the tree.
func TestReadme(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_ = os.CopyFS(filepath.Join(dir, "figures"), os.DirFS("figures")) // there are none before the first run
	if err := os.WriteFile(filepath.Join(dir, "README.md"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeTables(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "README.md")); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%v: README.md has other figures: ci/cluster/run table", err)
	}
	if _, err := replace([]byte("no marks"), "summary", ""); err == nil {
		t.Error("a README.md without marks passes")
	}
}

func TestSets(t *testing.T) {
	for name, s := range sets() {
		for _, pattern := range []string{s.Focus, skips(s.Skip)} {
			if _, err := regexp.Compile(pattern); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, skip := range s.Skip {
			if skip.Why == "" {
				t.Errorf("%s: %s is skipped without a reason", name, skip.Match)
			}
		}
		if s.Limit == 0 || len(s.Runs) == 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	runs, err := parseRuns("kube-proxy/nftables,tandem/iptables")
	if err != nil || !reflect.DeepEqual(runs, []proxy{{kubeProxy, "nftables"}, {tandem, "iptables"}}) {
		t.Errorf("%v, %v", runs, err)
	}
	for _, bad := range []string{"", "tandem", "cilium/ebpf", "tandem/"} {
		if _, err := parseRuns(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

// TestHierarchies reads a hybrid of both versions, as it is on this kind of machine.
func TestHierarchies(t *testing.T) {
	const mounts = `30 22 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset,clone_children
39 30 0:36 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd
40 30 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
41 30 0:40 / / rw - ext4 /dev/sda rw
`
	const groups = "4:cpu,cpuacct:/a/b\n3:cpuset:/\n2:name=systemd:/c\n0::/d\n"
	want := []hierarchy{
		{"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct", "/a/b"},
		{"cpuset", "/sys/fs/cgroup/cpuset", "cgroup", "cpuset", "/"},
		{"systemd", "/sys/fs/cgroup/systemd", "cgroup", "none,name=systemd", "/c"},
		{"unified", "/sys/fs/cgroup/unified", "cgroup2", "", "/d"},
	}
	if got := parseHierarchies(mounts, groups); !reflect.DeepEqual(got, want) {
		t.Errorf("hierarchies %+v", got)
	}
}

// TestImages writes two images on one base and reads the archive: the base is there once, every
// digest is that of a blob, and names are containerd's.
func TestImages(t *testing.T) {
	dir := t.TempDir()
	base, program := filepath.Join(dir, "base"), filepath.Join(dir, "program")
	if err := errors.Join(os.MkdirAll(filepath.Join(base, "etc"), 0o755), os.WriteFile(filepath.Join(base, "etc", "hosts"), []byte("h"), 0o600), os.Symlink("etc", filepath.Join(base, "link")), os.WriteFile(program, []byte("p"), 0o700)); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "all.tar")
	err := writeImages(archive, []image{
		{Names: []string{"a:1", "b:2"}, Base: base, Files: map[string]string{"bin/p": program}, Links: map[string]string{"q": "bin/p"}},
		{Names: []string{"c:3"}, Base: base, Entrypoint: []string{"/bin/p"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	contents := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if contents[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(contents["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	var names []string
	layers := map[string]bool{}
	blob := func(digest string) []byte {
		data, ok := contents["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")]
		if !ok {
			t.Errorf("no blob %s", digest)
		}
		return data
	}
	for _, m := range index.Manifests {
		names = append(names, m.Annotations["io.containerd.image.name"])
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		if err := json.Unmarshal(blob(m.Digest), &manifest); err != nil || len(manifest.Layers) != 2 {
			t.Fatal(err, manifest)
		}
		blob(manifest.Config.Digest)
		layers[manifest.Layers[0].Digest] = true
		if !bytes.Contains(blob(manifest.Layers[0].Digest), []byte("etc/hosts")) {
			t.Error("the base has no etc/hosts")
		}
	}
	if !reflect.DeepEqual(names, []string{"a:1", "b:2", "c:3"}) || len(layers) != 1 {
		t.Errorf("names %v, %d bases", names, len(layers))
	}
}
