// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of the output of a build
	Test       string
	Output     string
	Elapsed    float64 // seconds
	// FailedBuild is the ImportPath whose build failed.
	FailedBuild string
}

// test is the name of a test, or of a whole package where name is empty.
type test struct{ pkg, name string }

// tally is the state of tests, as far as their events were read.
type tally struct {
	packages, passed int
	failed           []test
	skipped          map[string][]test // by reason
	notes            []string          // numbers logged by the corpus

	running map[string]string // package to the test that began last
	output  map[test][]string // until a test has passed
	counts  map[string]int    // tests of a package
}

func newTally() *tally {
	return &tally{
		skipped: map[string][]test{}, running: map[string]string{},
		output: map[test][]string{}, counts: map[string]int{},
	}
}

// keptLines is how much of a test's output is kept, at its end.
const keptLines = 300

// read takes the events of a stream, and prints a line for each package that is
// done. What is no event, such as go's own messages, is passed on.
func (t *tally) read(from io.Reader, r *runner) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			r.say("%s", lines.Bytes())
			continue
		}
		r.mu.Lock()
		said := t.take(e)
		r.mu.Unlock()
		if said != "" {
			r.say("%s", said)
		}
	}
	return lines.Err()
}

// take handles one event and returns the line to print, if any.
func (t *tally) take(e event) string {
	at := test{short(e.Package), e.Test}
	switch e.Action {
	case "start", "run", "cont":
		t.running[at.pkg] = e.Test
	case "output", "build-output":
		if e.Action == "build-output" {
			at = test{short(e.ImportPath), ""}
		}
		t.keep(at, strings.TrimSuffix(e.Output, "\n"))
	case "pass", "fail", "skip":
		if e.Test == "" {
			return t.ended(at, e)
		}
		t.result(at, e.Action)
	}
	return ""
}

// score matches the line in which ci/wine reports how many of other projects' checks hold,
// and that by which ci/simulate closes.
var score = regexp.MustCompile(`^((hcsshim hcn|winkernel): \d+ of \d+ |simulation: \d+ runs, )`)

func (t *tally) keep(at test, line string) {
	if _, note, ok := strings.Cut(line, "corpus: "); ok {
		t.note(at.pkg + ": " + note)
	} else if score.MatchString(line) {
		t.note(line)
	}
	lines := append(t.output[at], line)
	t.output[at] = lines[max(0, len(lines)-keptLines):]
}

// noteLength bounds a note, in bytes.
const noteLength = 150

// note keeps a line for the summary, once.
func (t *tally) note(line string) {
	if len(line) > noteLength {
		line = strings.ToValidUTF8(line[:noteLength], "") + "..."
	}
	if !slices.Contains(t.notes, line) {
		t.notes = append(t.notes, line)
	}
}

func (t *tally) result(at test, action string) {
	t.counts[at.pkg]++
	switch action {
	case "fail":
		t.failed = append(t.failed, at)
		return
	case "skip":
		why := reason(t.output[at])
		t.skipped[why] = append(t.skipped[why], at)
	default:
		t.passed++
	}
	delete(t.output, at)
}

// ended returns the line about a package of which all tests have ended.
func (t *tally) ended(at test, e event) string {
	delete(t.running, at.pkg)
	if e.Action == "skip" { // it has no tests
		return ""
	}
	t.packages++
	text := strings.Join(t.output[at], "\n")
	if e.Action == "fail" {
		t.failed = append(append(t.failed, t.unfinished(at.pkg)...), at)
		if e.FailedBuild != "" {
			t.output[at] = t.output[test{short(e.FailedBuild), ""}]
		}
		return fmt.Sprintf("FAIL  %-28s %5d tests %7.1f s%s", at.pkg, t.counts[at.pkg], e.Elapsed, t.brief(at.pkg))
	}
	delete(t.output, at)
	cached := ""
	if strings.Contains(text, "(cached)") {
		cached = "  as before"
	}
	return fmt.Sprintf("ok    %-28s %5d tests %7.1f s%s", at.pkg, t.counts[at.pkg], e.Elapsed, cached)
}

// unfinished returns the tests of a package that have ended without a result:
// their output has the reason, such as a time limit.
func (t *tally) unfinished(pkg string) (all []test) {
	for at := range t.output {
		if at.pkg == pkg && at.name != "" && !slices.Contains(t.failed, at) {
			all = append(all, at)
		}
	}
	slices.SortFunc(all, func(a, b test) int { return strings.Compare(a.name, b.name) })
	return all
}

// now returns the tests that run.
func (t *tally) now() string {
	var all []string
	for _, pkg := range slices.Sorted(maps.Keys(t.running)) {
		all = append(all, strings.TrimSpace(pkg+" "+t.running[pkg]))
	}
	if len(all) == 0 {
		return "building"
	}
	return strings.Join(all, ", ")
}

// brief returns the failed tests of a package with the ends of their output, for those
// who see only this part of a long log.
func (t *tally) brief(pkg string) string {
	const shown = 12 // lines of each
	var b strings.Builder
	for _, at := range t.failed {
		if at.pkg != pkg {
			continue
		}
		fmt.Fprintf(&b, "\n  FAIL %s", at.name)
		lines := t.said(at)
		for _, line := range lines[max(0, len(lines)-shown):] {
			fmt.Fprintf(&b, "\n    %s", line)
		}
	}
	return b.String()
}

// said returns the output of a test that has not passed.
func (t *tally) said(at test) []string {
	return slices.DeleteFunc(slices.Clone(t.output[at]), func(line string) bool { return strings.HasPrefix(line, "=== ") })
}

// failures returns the output of all failed tests.
func (t *tally) failures() string {
	var b strings.Builder
	for _, at := range t.failed {
		fmt.Fprintf(&b, "\nFAIL %s %s\n", at.pkg, at.name)
		for _, line := range t.said(at) {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String()
}

// place is the position prefix of a test's message.
var place = regexp.MustCompile(`^\s*[\w.]+\.go:\d+: `)

// reason returns the reason that a skipped test has given: its last message.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		if place.MatchString(line) {
			return strings.TrimSpace(place.ReplaceAllString(line, ""))
		}
	}
	return "no reason given"
}

// short returns the folder of a package.
func short(importPath string) string {
	path, _, _ := strings.Cut(importPath, " ") // "a [a.test]" is a built for its test
	return strings.TrimPrefix(path, "github.com/tandem-proxy/tandem/")
}
