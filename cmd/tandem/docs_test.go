// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The manual page of a verb has the flags that its help shows; that of run has all.
func TestManualPagesHaveTheFlagsOfHelp(t *testing.T) {
	dir := t.TempDir()
	if err := writePackaging(newRoot(), dir); err != nil {
		t.Fatal(err)
	}
	for page, flags := range map[string]string{
		"tandem-run.8":     "manifests ipvs-scheduler init-only",
		"tandem-plan.8":    "manifests prune !ipvs-scheduler",
		"tandem-cleanup.8": "ipvs-exclude-cidrs !ipvs-scheduler",
		"tandem-status.8":  "watch !manifests",
	} {
		text, err := os.ReadFile(filepath.Join(dir, "man", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range strings.Fields(flags) {
			name, absent := strings.CutPrefix(flag, "!")
			if has := strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), "--"+name); has == absent {
				t.Errorf("%s has --%s: %t", page, name, has)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "man", "tandem.8"))
	if err != nil || !strings.Contains(string(text), "\n  tandem plan") {
		t.Errorf("the examples of tandem.8 are not lines of their own: %v\n%s", err, text)
	}
}

// docs lists the pages, prints one, finds words, and writes files; what is not there is
// said with the nearest name.
func TestDocs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "site")
	for line, want := range map[string]string{
		"docs": "troubleshooting", "docs k3s": "From kube-proxy to Tandem on k3s\n=====", "docs --search hairpin": "(tandem docs concepts)", "docs --html " + dir: "",
	} {
		code, stdout, stderr := tandem(t, strings.Fields(line)...)
		if code != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit code %d, %s\n%s", line, code, stderr, stdout)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "index.html")); err != nil {
		t.Error(err)
	}
	if code, _, stderr := tandem(t, "docs", "troubleshoting"); code != exitUsage || !strings.Contains(stderr, `did you mean "troubleshooting"?`) {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if code, _, _ := tandem(t, "docs", "--search", "no-such-word-anywhere"); code != exitFailure {
		t.Errorf("a search without results: exit code %d", code)
	}
}
