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
