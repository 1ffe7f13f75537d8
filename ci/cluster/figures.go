// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// States of a spec.
const (
	passed  = "pass"
	failed  = "fail"
	skipped = "skip"
)

// spec is the result of one of upstream's tests.
type spec struct {
	Name    string
	State   string
	Seconds float64
	Reason  string // why it failed or was skipped
}

// figures are those of one run: a set of tests with one proxy.
type figures struct {
	Set        string
	Kubernetes string // the version, where it is not that of the tests
	Proxy      proxy
	Facts      map[string]string // what was measured, by its name
	Specs      []spec
}

// Facts of a run.
const (
	factDate     = "date"
	factVersion  = "version"  // of Kubernetes
	factSeconds  = "seconds"  // of the tests
	factUp       = "up"       // seconds until the cluster was there
	factCPU      = "cpu"      // seconds a node that the proxy used during the tests
	factRSS      = "rss"      // MiB a node at the end
	factRequests = "requests" // of the proxies of all nodes
	factWarnings = "warnings" // Events of type Warning from the proxy
	factLogged   = "logged"   // warnings and errors in the logs of the proxies of all nodes
)

// parseReport reads the specs out of Ginkgo's JSON report.
func parseReport(data []byte) (all []spec, err error) {
	var suites []struct {
		SpecialSuiteFailureReasons []string
		SpecReports                []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("report of Ginkgo: %w", err)
	}
	for _, s := range suites {
		over := slices.ContainsFunc(s.SpecialSuiteFailureReasons, func(why string) bool { return strings.Contains(why, "Timeout") })
		for _, r := range s.SpecReports {
			if r.LeafNodeType != "It" {
				continue
			}
			one := spec{Name: strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " "), Seconds: r.RunTime.Seconds()}
			one.Reason, _, _ = strings.Cut(strings.TrimSpace(r.Failure.Message), "\n")
			switch {
			case r.State == "timedout" && over: // cut short: it says nothing of the proxy
				one.State, one.Reason = skipped, "the time of the run was over"
			case r.State == "passed":
				one.State, one.Reason = passed, ""
			case r.State != "skipped" && r.State != "pending":
				one.State = failed
			case one.Reason != "": // it ran, and said so
				one.State = skipped
			default: // not in the focus
				continue
			}
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b spec) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

func (f figures) count(state string) (n int) {
	for _, s := range f.Specs {
		if s.State == state {
			n++
		}
	}
	return n
}

// fileName is that of the figures of a run.
func (f figures) fileName() string {
	name := fmt.Sprintf("%s-%s-%s", f.Set, f.Proxy.Name, f.Proxy.Mode)
	if f.Kubernetes != "" {
		name += "-" + f.Kubernetes
	}
	return name + ".tsv"
}

// write writes figures as lines: facts after #, then one spec a line.
func (f figures) write(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# set %s\n# proxy %s\n# mode %s\n", f.Set, f.Proxy.Name, f.Proxy.Mode)
	if f.Kubernetes != "" {
		fmt.Fprintf(b, "# kubernetes %s\n", f.Kubernetes)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Facts)) {
		fmt.Fprintf(b, "# %s %s\n", name, f.Facts[name])
	}
	for _, s := range f.Specs {
		fmt.Fprintf(b, "%s\t%.1f\t%s\t%s\n", s.State, s.Seconds, s.Name, strings.ReplaceAll(s.Reason, "\t", " "))
	}
	return b.Flush()
}

// readFigures is the other way around.
func readFigures(data []byte) (f figures, err error) {
	f.Facts = map[string]string{}
	for line := range bytes.Lines(data) {
		text := strings.TrimSuffix(string(line), "\n")
		if fact, ok := strings.CutPrefix(text, "# "); ok {
			name, value, _ := strings.Cut(fact, " ")
			switch name {
			case "set":
				f.Set = value
			case "proxy":
				f.Proxy.Name = value
			case "mode":
				f.Proxy.Mode = value
			case "kubernetes":
				f.Kubernetes = value
			default:
				f.Facts[name] = value
			}
			continue
		}
		fields := strings.Split(text, "\t")
		if len(fields) != 4 {
			return f, fmt.Errorf("a line of figures with %d fields: %q", len(fields), text)
		}
		s := spec{State: fields[0], Name: fields[2], Reason: fields[3]}
		if s.Seconds, err = strconv.ParseFloat(fields[1], 64); err != nil {
			return f, fmt.Errorf("%q: %w", text, err)
		}
		f.Specs = append(f.Specs, s)
	}
	return f, nil
}

// allFigures reads a folder's, in the order of everyProxy.
func allFigures(dir string) (all []figures, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.tsv"))
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		f, err := readFigures(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		all = append(all, f)
	}
	order := func(f figures) int { return slices.Index(everyProxy(), f.Proxy) }
	slices.SortStableFunc(all, func(a, b figures) int { return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(order(a), order(b))) })
	return all, nil
}

// summary is the table of runs.
func summary(all []figures) string {
	var b strings.Builder
	b.WriteString("| set | proxy | mode | pass | fail | skip | time | CPU a node | RSS a node | API requests | Warning Events | logged warnings |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, f := range all {
		if f.Kubernetes != "" {
			continue // byVersion has it
		}
		fact := func(name, unit string) string {
			if f.Facts[name] == "" {
				return "-"
			}
			return f.Facts[name] + unit
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %s | %s | %s | %s | %s | %s |\n", f.Set, f.Proxy.Name, f.Proxy.Mode, f.count(passed), f.count(failed), f.count(skipped),
			fact(factSeconds, " s"), fact(factCPU, " s"), fact(factRSS, " MiB"), fact(factRequests, ""), fact(factWarnings, ""), fact(factLogged, ""))
	}
	return b.String()
}

// byVersion is the table of versions of Kubernetes: their runs, and those of the same set and proxy in that of the tests.
func byVersion(all []figures) string {
	var b strings.Builder
	b.WriteString("| Kubernetes | proxy | mode | pass | fail | skip | time |\n|---|---|---|---|---|---|---|\n")
	version := func(a, b figures) int { return cmp.Compare(a.Facts[factVersion], b.Facts[factVersion]) }
	for _, f := range slices.SortedStableFunc(slices.Values(all), version) {
		if f.Kubernetes != "" || f.Set == "conformance" && slices.Contains(sets()["versions"].Runs, f.Proxy) {
			fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %s s |\n", strings.TrimPrefix(f.Facts[factVersion], "v"), f.Proxy.Name, f.Proxy.Mode,
				f.count(passed), f.count(failed), f.count(skipped), f.Facts[factSeconds])
		}
	}
	return b.String()
}

// bySpec is the table of a set's specs: the seconds of each run, or that it failed or was skipped.
func bySpec(all []figures, set string) string {
	runs := slices.DeleteFunc(slices.Clone(all), func(f figures) bool { return f.Set != set })
	results, names := map[string]map[int]spec{}, []string{}
	for i, f := range runs {
		for _, s := range f.Specs {
			if results[s.Name] == nil {
				results[s.Name] = map[int]spec{}
				names = append(names, s.Name)
			}
			results[s.Name][i] = s
		}
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("| spec |")
	for _, f := range runs {
		fmt.Fprintf(&b, " %s |", f.Proxy)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(runs)) + "\n")
	for _, name := range names {
		fmt.Fprintf(&b, "| %s |", strings.NewReplacer("|", "/", "[sig-network] ", "", "<", "&lt;").Replace(name))
		for i := range runs {
			s, ok := results[name][i]
			switch {
			case !ok:
				b.WriteString(" - |")
			case s.State == passed:
				fmt.Fprintf(&b, " %.0f |", s.Seconds)
			default:
				fmt.Fprintf(&b, " %s |", s.State)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// failures lists the specs that failed, with what upstream's test says.
func failures(all []figures) string {
	var b strings.Builder
	for _, f := range all {
		for _, s := range f.Specs {
			if s.State == failed {
				of := f.Set
				if f.Kubernetes != "" {
					of += " " + f.Kubernetes
				}
				fmt.Fprintf(&b, "- %s, %s: %s: `%.160s`\n", of, f.Proxy, s.Name, strings.ReplaceAll(s.Reason, "`", "'"))
			}
		}
	}
	return cmp.Or(b.String(), "None.\n")
}

// closing is the line that a run of several proxies ends with.
func closing(all []figures) string {
	counts := map[string][2]int{}
	for _, f := range all {
		c := counts[f.Proxy.Name]
		counts[f.Proxy.Name] = [2]int{c[0] + f.count(passed), c[1] + f.count(passed) + f.count(failed)}
	}
	t, k := counts[tandem], counts[kubeProxy]
	switch {
	case k[1] == 0:
		return fmt.Sprintf("e2e: %d of %d pass", t[0], t[1])
	case t[1] == 0:
		return fmt.Sprintf("e2e: kube-proxy %d of %d", k[0], k[1])
	}
	return fmt.Sprintf("e2e: %d of %d pass, kube-proxy %d of %d", t[0], t[1], k[0], k[1])
}

// worse are the specs that failed with Tandem, but for those that each run of kube-proxy among the figures
// failed, too.
func worse(all []figures) (lines []string) {
	states := map[string]string{} // with kube-proxy; one run that passes is enough
	for _, f := range all {
		for _, s := range f.Specs {
			if f.Proxy.Name == kubeProxy && states[s.Name] != passed {
				states[s.Name] = s.State
			}
		}
	}
	for _, f := range all {
		for _, s := range f.Specs {
			if f.Proxy.Name == tandem && s.State == failed && states[s.Name] != failed {
				lines = append(lines, fmt.Sprintf("%s: %s", f.Proxy, s.Name))
			}
		}
	}
	return lines
}

// writeTables replaces the tables of README.md, which are between marks, by those of the figures.
func writeTables(dir string) error {
	all, err := allFigures(filepath.Join(dir, "figures"))
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "README.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	tables := map[string]string{"summary": summary(all), "failures": failures(all), "specs": bySpec(all, "network"), "versions": byVersion(all)}
	for _, name := range []string{"life", "questions", "neighbours"} {
		table, err := os.ReadFile(filepath.Join(dir, "figures", name+".md"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		tables[name] = string(table)
	}
	for mark, table := range tables {
		if text, err = replace(text, mark, table); err != nil {
			return err
		}
	}
	return os.WriteFile(path, text, 0o644)
}

// replace replaces what is between the marks of a table.
func replace(text []byte, mark, table string) ([]byte, error) {
	begin, end := fmt.Appendf(nil, "<!-- %s -->\n", mark), fmt.Appendf(nil, "<!-- /%s -->\n", mark)
	before, rest, ok := bytes.Cut(text, begin)
	_, after, closed := bytes.Cut(rest, end)
	if !ok || !closed {
		return nil, fmt.Errorf("README.md has no marks of %s", mark)
	}
	return slices.Concat(before, begin, []byte(table), end, after), nil
}
