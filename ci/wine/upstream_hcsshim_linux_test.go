// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// TestHcsshim runs Microsoft's own integration tests of hcsshim's package hcn,
// which are meant for a real HNS, on the emulator. All pass.
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
	out := run("-test.v")
	passed := passes(out)
	for _, name := range listed {
		if !passed[name] {
			t.Errorf("%s does not pass:\n%s", name, excerpt(out, name))
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
