// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// hcnUnimplemented are the tests of hcsshim's package hcn that need what the
// emulator does not have, by what that is.
var hcnUnimplemented = map[string][]string{
	"namespaces, which are the containers'": {
		"TestEndpointNamespaceAttachDetach", "TestCreateDeleteNamespace", "TestCreateDeleteNamespaceGuest", "TestGetNamespaceById",
		"TestListNamespaces", "TestGetNamespaceEndpointIds", "TestGetNamespaceContainers", "TestAddRemoveNamespaceEndpoint",
		"TestModifyNamespaceSettings", "TestSyncNamespaceHostDefault", "TestSyncNamespaceHost", "TestSyncNamespaceGuestNoReg",
		"TestSyncNamespaceGuestDefaultNoReg", "TestSyncNamespaceGuest", "TestSyncNamespaceGuestDefault",
	},
	"SDN routes": {"TestCreateDeleteRoute", "TestGetRouteById", "TestRouteAddRemoveEndpoint", "TestAddRoute"},
}

// TestHcsshim runs Microsoft's own integration tests of hcsshim's package hcn,
// which are meant for a real HNS, on the emulator.
func TestHcsshim(t *testing.T) {
	p := open(t)
	exe := filepath.Join(t.TempDir(), "hcn.test.exe")
	c := exec.Command("go", "test", "-c", "-tags", "integration", "-o", exe, "github.com/Microsoft/hcsshim/hcn")
	c.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build hcsshim's tests: %v\n%s", err, out)
	}
	emu := hnsemu.New(hnsemu.WS2025)
	addr := serveHNS(t, emu)
	run := func(args ...string) string {
		c := p.command(append([]string{exe, "-test.timeout=2m"}, args...)...)
		c.Env = append(c.Env, "HNSEMU_ADDR="+addr)
		out, err := finish(c)
		t.Logf("%v ends with %v", args, err) // each test is judged by its own line
		return string(out)
	}
	listed := strings.Fields(run("-test.list", "."))
	var skipped []string
	for _, what := range slices.Sorted(maps.Keys(hcnUnimplemented)) {
		skipped = append(skipped, hcnUnimplemented[what]...)
		t.Logf("not implemented: %s: %s", what, strings.Join(hcnUnimplemented[what], " "))
	}
	names := "^(" + strings.Join(skipped, "|") + ")$"
	out := run("-test.v", "-test.skip", names)
	passed := passes(out)
	for _, name := range listed {
		if !passed[name] && !slices.Contains(skipped, name) {
			t.Errorf("%s does not pass:\n%s", name, excerpt(out, name))
		}
	}
	for name := range passes(run("-test.v", "-test.run", names)) {
		t.Errorf("%s passes, and is listed as not implemented", name)
	}
	for _, name := range skipped {
		if !slices.Contains(listed, name) {
			t.Errorf("%s is listed as not implemented, and there is no such test", name)
		}
	}
	fmt.Printf("hcsshim hcn: %d of %d pass\n", len(passed), len(listed))
}

// passes returns the tests that have passed by a test program's output.
func passes(out string) map[string]bool {
	passed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)--- PASS: (\w+) `).FindAllStringSubmatch(out, -1) {
		passed[m[1]] = true
	}
	return passed
}

// excerpt returns the output of a test program about one of its tests.
func excerpt(out, name string) string {
	_, from, ok := strings.Cut(out, "=== RUN   "+name+"\n")
	if !ok {
		_, from, ok = strings.Cut(out, "=== RUN   "+name+"\r\n")
	}
	if !ok {
		return "it was not run:\n" + out[max(0, len(out)-2000):]
	}
	said, _, _ := strings.Cut(from, "=== RUN")
	return said
}
