// SPDX-License-Identifier: Apache-2.0

package hnsemu_test

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rule is a line of the table of rules in the package's doc comment.
type rule struct{ name, says, source string }

// rules reads the table.
func rules(t *testing.T) (all []rule) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	columns := regexp.MustCompile(`(?m)^//\t(\S+) {2,}(\S.*?) {2,}(\S.*)$`)
	for _, m := range columns.FindAllStringSubmatch(string(text), -1) {
		if m[1] != "name" {
			all = append(all, rule{m[1], m[2], m[3]})
		}
	}
	if len(all) < 30 {
		t.Fatalf("%d rules were read of the table", len(all))
	}
	return all
}

// Every rule of the table is carried out somewhere, and what is carried out under a
// name is in the table.
func TestRulesHaveNames(t *testing.T) {
	done := map[string]bool{}
	err := fs.WalkDir(os.DirFS("."), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || file == "doc.go" || strings.HasSuffix(file, "_test.go") || !slices.Contains([]string{".go", ".c", ".h"}, path.Ext(file)) {
			return err
		}
		text, err := os.ReadFile(file)
		for _, m := range regexp.MustCompile(`rule: ([a-z0-9 -]+)`).FindAllStringSubmatch(string(text), -1) {
			for _, name := range strings.Fields(m[1]) {
				done[name] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range rules(t) {
		if seen[r.name] {
			t.Errorf("%s is in the table twice", r.name)
		}
		if seen[r.name] = true; !done[r.name] {
			t.Errorf("%s is in the table, and no code says that it is carried out there", r.name)
		}
	}
	for name := range done {
		if !seen[name] {
			t.Errorf("%s is carried out, and not in the table", name)
		}
	}
}
