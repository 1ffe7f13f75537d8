// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// whole returns a folder with everything in it, built once for all tests.
var whole = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "tandem-dist-test-")
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "dist"), nil
})

func built(t *testing.T) release {
	t.Helper()
	if testing.Short() {
		t.Skip("builds everything: minutes")
	}
	out, err := whole()
	if err != nil {
		t.Fatal(err)
	}
	r := sample(t, out)
	if _, err := os.Stat(out); err != nil {
		if err := r.build(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// sample is a release of this tree. What makes MSIs is not everywhere.
func sample(t *testing.T, out string) release {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "1800000000")
	r := release{root: "../..", out: out, version: "v1.2.3-4-gabcdef0", commit: strings.Repeat("01234567", 5)}
	if _, err := exec.LookPath("wixl"); err != nil {
		t.Logf("without the MSIs and manifests: %v", err)
		r.only = "programs,licenses,packages,images,sbom,checksums"
	}
	return r
}

func TestMain(m *testing.M) {
	code := m.Run()
	if out, err := whole(); err == nil {
		_ = os.RemoveAll(filepath.Dir(out))
	}
	os.Exit(code)
}

func TestSemantic(t *testing.T) {
	for in, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3-rc1": "1.2.3-rc1", "v1.2.3-4-gabcdef0-dirty": "1.2.3+4.gabcdef0.dirty", "v1.2.3-dirty": "1.2.3+dirty",
		"v1.3.0-rc1-7-g01234": "1.3.0-rc1+7.g01234", "abcdef0-dirty": "0.0.0-git+abcdef0.dirty", "devel": "0.0.0-git+devel",
	} {
		if got := semantic(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// Two runs give the same files, bit for bit, wherever they are written and
// whatever the tree is called.
func TestReproducible(t *testing.T) {
	first := built(t)
	second := sample(t, filepath.Join(t.TempDir(), "elsewhere", "out"))
	second.root = duplicate(t)
	if err := second.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, errA := os.ReadFile(filepath.Join(first.out, sums))
	b, errB := os.ReadFile(filepath.Join(second.out, sums))
	if errA != nil || errB != nil || len(a) < 1000 {
		t.Fatal(errA, errB, len(a))
	}
	if !bytes.Equal(a, b) {
		t.Errorf("the second run differs:\n%s\n%s", a, b)
	}
}

// duplicate returns a copy of what a checkout of this tree would have.
func duplicate(t *testing.T) string {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("needs git to list the files of the tree: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "another")
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		from, to := filepath.Join("../..", name), filepath.Join(dir, name)
		info, err := os.Stat(from)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, and not committed
		}
		var text []byte
		if err == nil {
			text, err = os.ReadFile(from)
		}
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, info.Mode()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Programs are for the processors and from the toolchain of the release, whatever the
// environment asks for.
func TestPinned(t *testing.T) {
	for name, value := range map[string]string{"GOAMD64": "v3", "GOARM64": "v9.0", "CGO_ENABLED": "1", "GOEXPERIMENT": "nosizespecializedmalloc", "GOFLAGS": "-tags=other"} {
		t.Setenv(name, value)
	}
	module, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "\ngo " + strings.TrimPrefix(toolchain, "go") + "\n"; !strings.Contains(string(module), want) {
		t.Errorf("releases are built with %s, which is not the version of go.mod", toolchain)
	}
	for _, to := range []target{{"linux", "amd64"}, {"windows", "arm64"}, {"darwin", "arm64"}} {
		path := filepath.Join(t.TempDir(), "tandem")
		if err := sample(t, t.TempDir()).compile(t.Context(), to, path); err != nil {
			t.Fatal(err)
		}
		pinned(t, to, path)
	}
}

// maxProgram bounds the bytes of a program. Those that have html/template, or give cobra a template, have 5 MB more, as
// the linker keeps all methods for them.
const maxProgram = 36_000_000

// pinned checks what a program says of its build, and its size.
func pinned(t *testing.T, to target, path string) {
	if info, err := os.Stat(path); err != nil || info.Size() > maxProgram {
		t.Errorf("%s: %v, want at most %d bytes: %v", to, info, maxProgram, err)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{"go": info.GoVersion}
	for _, s := range info.Settings {
		have[s.Key] = s.Value
	}
	want := map[string]string{"go": toolchain, "GOOS": to.os, "GOARCH": to.arch, "CGO_ENABLED": "0", "-tags": "", "-trimpath": "true"}
	maps.Copy(want, map[string]map[string]string{"amd64": {"GOAMD64": "v1"}, "arm64": {"GOARM64": "v8.0"}}[to.arch])
	for name, value := range want {
		if have[name] != value {
			t.Errorf("%s: %s is %q, want %q", to, name, have[name], value)
		}
	}
}

// Everything is there, and every file is in the checksums.
func TestComplete(t *testing.T) {
	r := built(t)
	text, err := os.ReadFile(filepath.Join(r.out, sums))
	if err != nil {
		t.Fatal(err)
	}
	const version = "1.2.3+4.gabcdef0"
	want := []string{
		"bin/tandem-linux-amd64", "bin/tandem-windows-arm64.exe", "bin/tandem-darwin-arm64", "docs/man/tandem.8", "packages/tandem_" + version + "-1_amd64.deb",
		"images/tandem.tar", "images/tandem-iptables.tar", "sbom/tandem-linux-arm64.spdx.json",
	}
	if r.only == "" {
		want = append(want, "windows/tandem-"+version+"-windows-amd64.msi", "windows/tandem-"+version+"-windows-arm64.zip",
			"kubernetes/tandem-"+version+".tgz", "kubernetes/tandem.yaml", "kubernetes/kustomize/kustomization.yaml", "kubernetes/index.yaml", "provenance.intoto.json",
			"managers/scoop/tandem.json", "managers/homebrew/tandem.rb")
	}
	for _, name := range want {
		if !strings.Contains(string(text), "  "+name+"\n") {
			t.Errorf("no %s in\n%s", name, text)
		}
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--quiet", sums)
	check.Dir = r.out
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// What stops in the middle leaves what was there.
func TestFailureChangesNothing(t *testing.T) {
	out := filepath.Join(t.TempDir(), "dist")
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(out, "old")
	if err := os.WriteFile(old, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := sample(t, out)
	r.root = t.TempDir() // no source there
	if err := r.build(t.Context()); err == nil || !strings.Contains(err.Error(), "programs") {
		t.Errorf("built from nothing: %v", err)
	}
	if _, err := os.Stat(old); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(out + ".*"); left != nil {
		t.Errorf("left: %v", left)
	}
}

// The bill of each program names its modules, and the files it is delivered in.
func TestMaterials(t *testing.T) {
	r := built(t)
	for _, target := range all() {
		doc := bill(t, filepath.Join(r.out, "sbom", strings.TrimSuffix(filepath.Base(r.program(target)), ".exe")+".spdx.json"))
		have := map[string]string{}
		for _, p := range doc.Packages {
			have[p.PackageName] = p.PackageVersion
		}
		const version = "1.2.3+4.gabcdef0"
		want := map[string]string{"github.com/tandem-proxy/tandem": version, "stdlib": strings.TrimPrefix(runtime.Version(), "go"), "tandem.tar": version, "iptables": ""}
		switch target.String() {
		case "linux/amd64":
			want["tandem_"+version+"-1_amd64.deb"], want["tandem-iptables.tar"], want["iptables"] = version, version, "1.8.9-2"
		case "linux/arm64":
			want["tandem-1.2.3+4.gabcdef0-1.aarch64.rpm"], want["iptables"] = version, "1.8.9-2"
		case "windows/amd64":
			if r.only == "" {
				want["tandem-"+version+"-windows-amd64.msi"] = version
			}
			want["tandem-iptables.tar"] = ""
		default:
			want["tandem.tar"] = ""
		}
		for name, version := range want {
			if have[name] != version {
				t.Errorf("%s: %s is %q, want %q", target, name, have[name], version)
			}
		}
		if have["github.com/spf13/cobra"] == "" {
			t.Errorf("%s: %v", target, have)
		}
		if doc.CreationInfo.Created != time.Unix(1800000000, 0).UTC().Format(time.RFC3339) {
			t.Errorf("created %s", doc.CreationInfo.Created)
		}
	}
}

// bill reads an SPDX document. All its identities are unlike one another.
func bill(t *testing.T, path string) *spdx.Document {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := json.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[common.ElementID]string{}
	for _, p := range doc.Packages {
		if other := seen[p.PackageSPDXIdentifier]; other != "" {
			t.Errorf("%s and %s are both %s", other, p.PackageName, p.PackageSPDXIdentifier)
		}
		seen[p.PackageSPDXIdentifier] = p.PackageName
	}
	for _, r := range doc.Relationships {
		if seen[r.RefB.ElementRefID] == "" {
			t.Errorf("a relationship to %v, which is not in it", r.RefB)
		}
	}
	return doc
}
