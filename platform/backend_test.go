// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A backend for a made-up kernel is one folder (core/test/table) and one line in modes.go,
// with its import: then the program plans with it and names it. Go overlays the line, so that the tree does not change.
func TestBackendIsOneFolderAndOneLine(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	replace := map[string]string{}
	modes := read(t, "modes.go")
	for old, with := range map[string]string{
		"\t\thns.Mode(),\n": "\t\thns.Mode(),\n\t\ttable.Mode(),\n",
		"import (\n":        "import (\n\t\"github.com/tandem-proxy/tandem/core/test/table\"\n",
	} {
		if strings.Count(modes, old) != 1 {
			t.Fatalf("modes.go has %q %d times", old, strings.Count(modes, old))
		}
		modes = strings.Replace(modes, old, with, 1)
	}
	replace[filepath.Join(root, "platform", "modes.go")] = write(t, filepath.Join(tmp, "modes.go"), modes)
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := write(t, filepath.Join(tmp, "overlay.json"), string(text))
	program := filepath.Join(tmp, "tandem")

	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("go", "build", "-ldflags=-s -w", "-overlay", overlay, "-o", program, "./cmd/tandem")
	plan := run(program, "plan", "--manifests", "cmd/tandem/demo", "--node", "node-1", "--proxy-mode", "table", "-o", "native")
	for _, line := range []string{"from pod: balance 10.244.", "from outside: balance 10.244."} {
		if !strings.Contains(plan, line) {
			t.Errorf("%q is not in the plan:\n%s", line, plan)
		}
	}
	if help := run(program, "switch", "--help"); !strings.Contains(strings.Join(strings.Fields(help), " "), "or table or") {
		t.Errorf("the mode is not in the help:\n%s", help)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
