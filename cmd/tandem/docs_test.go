// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
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
	hide := newRoot()
	hideFlagsOfRun(hide)
	for _, c := range visible(hide) { // each is called what it is, and has no date, and no flag without a word
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		text, err := os.ReadFile(filepath.Join(dir, "man", name+".8"))
		page := strings.NewReplacer(`\\`, `\`, `\-`, "-", `\&`, "", `\fB`, "", `\fI`, "", `\fP`, "", `\fR`, "").Replace(string(text))
		if head := fmt.Sprintf(".TH %q \"8\" \"\" ", strings.ToUpper(name)); err != nil || !strings.Contains(page, head) || !strings.Contains(page, name+" - "+c.Short) || strings.Contains(page, "[=") {
			t.Errorf("%s: %v\n%.500s", name, err, page)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if _, usage := pflag.UnquoteUsage(f); !f.Hidden && (!strings.Contains(page, "--"+f.Name) || !strings.Contains(page, strings.Join(strings.Fields(usage), " "))) {
				t.Errorf("%s has no --%s: %s", name, f.Name, usage)
			}
		})
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
