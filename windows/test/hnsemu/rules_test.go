// SPDX-License-Identifier: Apache-2.0

package hnsemu_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/contract"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
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
	if len(all) < 40 {
		t.Fatalf("%d rules were read of the table", len(all))
	}
	return all
}

// Error records have the form that HNS' were published in: kubernetes#100384, hcsshim#1043,
// antrea#2301, sig-windows-tools#249.
func TestErrorRecords(t *testing.T) {
	for published, code := range map[string]hns.Code{
		`{"Success":false,"Error":"The reference is invalid in the JSON document. A Reference is required","ErrorCode":2151350300}`: 0x803b001c,
		`{"Success":false,"Error":"The switch-port was not found. ","ErrorCode":2151350279}`:                                        0x803b0007,
		`{"Success":false,"Error":"Element not found. ","ErrorCode":2147943568}`:                                                    0x490,
		`{"Success":false,"Error":"The parameter is incorrect. ","ErrorCode":2147942487}`:                                           0x57,
	} {
		e := hnsemu.New(hnsemu.WS2022)
		e.Hook(func(*hnsemu.Call) hns.Code { return code })
		answer := e.Do(hnsemu.Request{Kind: hnsemu.LoadBalancer, Verb: hnsemu.Create})
		type record struct {
			Success   bool
			Error     string
			ErrorCode uint32
		}
		var want, got record
		if err := errors.Join(json.Unmarshal([]byte(published), &want), json.Unmarshal([]byte(answer.Record), &got)); err != nil {
			t.Fatal(err)
		}
		if got.Error = want.Error; got != want || answer.Result != want.ErrorCode {
			t.Errorf("%s: the emulator says %s, 0x%x", published, answer.Record, answer.Result)
		}
	}
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

// Whatever the emulator can be told to do, and each code that it answers with, is in the
// table.
func TestTheTableIsWhole(t *testing.T) {
	table := ""
	for _, r := range rules(t) {
		table += r.says + " " + r.source + "\n"
	}
	var must []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[hnsemu.Behaviour]()) {
		if f.Name != "Echo" { // DropExternal and Normalise
			must = append(must, f.Name)
		}
	}
	files, err := fs.Glob(os.DirFS("."), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:hns\.Code += |return |c\.Code = )(0x[0-9a-f]+)`).FindAllStringSubmatch(string(text), -1) {
			must = append(must, m[1])
		}
	}
	for _, e := range contract.All() { // what package contract expects is answered with, too
		if code := e.Expected(contract.About{HNS: hnsemu.WS2025}); strings.HasPrefix(code, "0x") {
			must = append(must, strings.Fields(code)...)
		}
	}
	if len(must) < 18 {
		t.Errorf("only %q", must)
	}
	for _, name := range must {
		if !strings.Contains(table, name) {
			t.Errorf("%s is in no rule of the table", name)
		}
	}
}

// Every rule that is assumed, and nothing else that is assumed, has an experiment by which a
// real HNS says what it does (package contract), and every experiment is of a rule.
func TestAssumedRulesHaveExperiments(t *testing.T) {
	asked, assumed := map[string]bool{}, map[string]bool{}
	for _, e := range contract.All() {
		rule, _, _ := strings.Cut(e.ID, "/")
		asked[rule] = true
		assumed[rule] = assumed[rule] || e.Source == contract.Assumed
	}
	kept, err := hnsemu.Kept()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{} // on a real machine
	for _, r := range kept {
		for _, x := range r.Results {
			if rule, _, _ := strings.Cut(x.ID, "/"); x.Verdict != contract.NotRun {
				seen[rule] = true
			}
		}
	}
	var all, guesses, askable int
	for _, r := range rules(t) {
		all++
		if asked[r.name] {
			askable++
		}
		guess := strings.Contains(r.source, "assumed")
		if guess {
			guesses++
		}
		switch {
		case guess && !asked[r.name]:
			t.Errorf("%s is assumed, and no experiment asks a real HNS", r.name)
		case guess && !assumed[r.name], !guess && assumed[r.name]:
			t.Errorf("%s: of the table and of its experiments only one says that it is assumed", r.name)
		}
		delete(asked, r.name)
	}
	for name := range asked {
		t.Errorf("experiments ask about %s, which is no rule", name)
	}
	t.Logf("%d rules: %d have a source in full, %d are assumed in whole or in part, %d were seen on a real machine; %d experiments ask about %d of them, the assumed ones included",
		all, all-guesses, guesses, len(seen), len(contract.All()), askable)
}
