// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever may push a tag names the version, and must not run programs by that name.
func TestATagIsNoCommand(t *testing.T) {
	for _, program := range []string{"make", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	for tag, want := range map[string]string{
		"v1.2.3":                      "v1.2.3",
		"v1.2.3-rc.1+a_b":             "v1.2.3-rc.1+a_b",
		"v1$(touch${IFS}owned)":       "",
		"v1`touch${IFS}owned`":        "",
		`v1";touch${IFS}owned;"`:      "",
		"v1'-extld=x":                 "",
		"$(shell${IFS}touch${IFS}ow)": "",
	} {
		t.Run(tag, func(t *testing.T) {
			dir := t.TempDir()
			root, err := filepath.Abs("../..")
			if err != nil {
				t.Fatal(err)
			}
			do := func(name string, args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), name, args...)
				cmd.Dir = dir
				cmd.Env = []string{"PATH=" + dir + "/bin:" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_GLOBAL=/dev/null"}
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(os.Mkdir(filepath.Join(dir, "bin"), 0o755))
			must(os.WriteFile(filepath.Join(dir, "bin", "go"), []byte("#!/bin/sh\nprintf '<%s>' \"$@\"\n"), 0o755))
			must(os.Symlink(filepath.Join(root, "Makefile"), filepath.Join(dir, "Makefile")))
			must(os.Symlink(filepath.Join(root, "ci"), filepath.Join(dir, "ci")))
			for _, args := range [][]string{
				{"init", "-q", "."}, {"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "--allow-empty", "-m", "x"}, {"tag", tag},
			} {
				if out, err := do("git", args...); err != nil {
					t.Fatalf("git %q: %v: %s", args, err, out)
				}
			}
			out, err := do("make", "build")
			if want == "" && (err == nil || !strings.Contains(out, "not a version")) || want != "" && !strings.Contains(out, "<-s -w -X main.version="+want+">") {
				t.Errorf("make build: %v: %s", err, out)
			}
			if found, _ := filepath.Glob(filepath.Join(dir, "ow*")); len(found) > 0 {
				t.Errorf("%s was made", found)
			}
		})
	}
}
