// SPDX-License-Identifier: Apache-2.0

// Package lint checks what the compiler does not: which way imports point.
package lint

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tandem-proxy/tandem/"

// pkg is the part of `go list -json` that is used.
type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Deps                               []string
}

func list(t *testing.T, goos string) map[string]pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", "./...")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string]pkg{}
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(p.ImportPath, module)] = p
	}
	if len(all) < 15 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	return all
}

// layer returns the first part of a package's path within the module.
func layer(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

// below lists what each layer may import of the others.
var below = map[string]string{
	"cmd":        "core platform linux windows installers",
	"platform":   "core platform linux windows",
	"linux":      "core linux",
	"windows":    "core windows",
	"core":       "core",
	"ci":         "core linux windows platform cmd ci installers",
	"installers": "core installers",
}

// edges are the packages that may know Kubernetes: where objects come in.
var edges = map[string]bool{"core/watch": true, "core/watch/apitest": true, "core/watch/gateway": true, "core/manifests": true}

// testEdges are packages of which tests alone may, and testBelow is what only the
// tests of a layer may import.
var (
	testEdges = map[string]bool{"core/config/file": true}
	testBelow = map[string]string{"installers": "ci"}
)

// wrong returns what is wrong with one package's imports, and those of its tests.
func wrong(path string, p pkg) []string {
	faults := against(path, p.Imports, below[layer(path)], edges[path])
	tests := append(slices.Clone(p.TestImports), p.XTestImports...)
	return append(faults, against(path, tests, below[layer(path)]+" "+testBelow[layer(path)], edges[path] || testEdges[path])...)
}

// against returns what imports of a package are not of the allowed layers, or
// know Kubernetes where that is not at the edge.
func against(path string, imports []string, allowed string, edge bool) (faults []string) {
	for _, imp := range imports {
		inner, ours := strings.CutPrefix(imp, module)
		if ours && !slices.Contains(strings.Fields(allowed), layer(inner)) {
			faults = append(faults, fmt.Sprintf("%s imports %s: imports point cmd, platform, linux|windows, core", path, inner))
		}
		if layer(path) == "core" && !edge && (strings.HasPrefix(imp, "k8s.io/") || strings.HasPrefix(imp, "golang.org/x/sys")) {
			faults = append(faults, fmt.Sprintf("%s imports %s: core is free of Kubernetes and of systems", path, imp))
		}
		if strings.HasPrefix(imp, "k8s.io/kubernetes") {
			faults = append(faults, fmt.Sprintf("%s imports %s", path, imp))
		}
	}
	return faults
}

func TestImportsPointOneWay(t *testing.T) {
	for _, goos := range []string{"linux", "windows"} {
		for path, p := range list(t, goos) {
			for _, w := range wrong(path, p) {
				t.Errorf("%s: %s", goos, w)
			}
		}
	}
}

// The rules must be able to fail.
func TestImportRulesBite(t *testing.T) {
	for path, imp := range map[string]string{
		"core/track":     "k8s.io/api/core/v1",
		"core/resolve":   module + "linux/nftables",
		"linux/nftables": module + "platform",
		"core/engine":    "golang.org/x/sys/unix",
		"linux/host":     module + "windows/hns",
		"windows/hns":    module + "linux/host",
		"platform":       "k8s.io/kubernetes/pkg/proxy",
	} {
		for _, p := range []pkg{{Imports: []string{imp}}, {TestImports: []string{imp}}, {XTestImports: []string{imp}}} {
			if len(wrong(path, p)) == 0 {
				t.Errorf("%s may import %s: %+v", path, imp, p)
			}
		}
	}
}

// What the daemon carries is decided here, not by accident.
func TestBinaryIsFreeOf(t *testing.T) {
	// Templates call methods by their names: the linker would keep all of the program's, which are 5 MB.
	forbidden := map[string][]string{
		"linux":   {"github.com/Microsoft/hcsshim", "testing", "github.com/rogpeppe", "html/template"},
		"windows": {"github.com/moby/ipvs", "github.com/coreos/go-iptables", "testing", "html/template"},
	}
	for goos, bad := range forbidden {
		for _, dep := range list(t, goos)["cmd/tandem"].Deps {
			for _, b := range bad {
				if dep == b || strings.HasPrefix(dep, b+"/") {
					t.Errorf("the %s binary contains %s", goos, dep)
				}
			}
		}
	}
}

// The languages of the kernel know no mode, and no mode takes them from another.
func TestLanguagesKnowNoMode(t *testing.T) {
	all := list(t, "linux")
	modes := []string{"nftables", "iptables", "ipvs", "userspace"}
	for _, language := range []string{"xtables", "nft", "netlink", "ipset", "conntrack", "virtualserver"} {
		if _, ok := all["linux/"+language]; !ok {
			t.Fatalf("linux/%s is gone: the test proves nothing", language)
		}
		for _, mode := range modes {
			if slices.Contains(all["linux/"+language].Deps, module+"linux/"+mode) {
				t.Errorf("linux/%s depends on linux/%s", language, mode)
			}
		}
	}
	for _, mode := range modes {
		for _, other := range modes {
			if slices.Contains(all["linux/"+mode].Deps, module+"linux/"+other) {
				t.Errorf("linux/%s depends on linux/%s", mode, other)
			}
		}
	}
}
