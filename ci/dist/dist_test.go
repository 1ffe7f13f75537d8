package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spdx/tools-golang/json"
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

func sample(t *testing.T, out string) release {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "1800000000")
	return release{root: "../..", out: out, version: "v1.2.3", only: "programs,packages,images,sbom,checksums"}
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

// Two runs give the same files, bit for bit, wherever they are written.
func TestReproducible(t *testing.T) {
	first := built(t)
	second := sample(t, filepath.Join(t.TempDir(), "elsewhere", "out"))
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

func TestMaterials(t *testing.T) {
	r := built(t)
	for _, target := range all() {
		f, err := os.Open(filepath.Join(r.out, "sbom", strings.TrimSuffix(filepath.Base(r.program(target)), ".exe")+".spdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := json.Read(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]string{}
		for _, p := range doc.Packages {
			names[p.PackageName] = p.PackageVersion
		}
		if names["github.com/tandem-proxy/tandem"] != "1.2.3" || names["stdlib"] == "" || names["github.com/spf13/cobra"] == "" {
			t.Errorf("%s: %v", target, names)
		}
		if doc.CreationInfo.Created != time.Unix(1800000000, 0).UTC().Format(time.RFC3339) {
			t.Errorf("created %s", doc.CreationInfo.Created)
		}
	}
}
