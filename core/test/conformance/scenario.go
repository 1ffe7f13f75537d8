// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Scenario is one test case of Services, in steps.
type Scenario struct {
	Name  string // the file's name without ".txtar"
	File  string // the file's name, for messages
	Title string // the first line of the comment
	Host  config.Config
	Steps []Step // Steps[0] is the beginning

	Machine model.Machine  // facts of the node that are not in its Node object
	Shared  []netip.Prefix // addresses on its dummy devices, which are not node addresses
}

// Step is one state of the manifests' folder and the expected results of packets in
// it. Steps share file contents, which must not be changed.
type Step struct {
	Number           int
	Title            string
	Files            map[string][]byte // the whole folder, by name
	Changed, Removed []string          // against the step before, sorted; at the beginning all Files are new
	Packets          []Packet
	Want             map[string]string // goldens by mode
	After            time.Duration     // how long after the step before it happens

	// Suspects replace those of the step before unless they are nil: endpoints that do not
	// answer, or that answer again (true).
	Suspects map[netip.Addr]bool
}

// Load reads all scenarios of a folder, by name. The error joins all problems, each
// with file and line.
func Load(fsys fs.FS) ([]*Scenario, error) {
	names, err := fs.Glob(fsys, "*.txtar")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, errors.New("no scenarios: there is no *.txtar in the folder, or no such folder")
	}
	var all []*Scenario
	var errs []error
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s, err := Parse(name, text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, s)
	}
	return all, errors.Join(errs...)
}

// Parse reads one scenario. The file name is for its name and for errors.
func Parse(file string, text []byte) (*Scenario, error) {
	comment, all, err := sections(text)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", file, err)
	}
	p := parser{file: file}
	s := &Scenario{Name: strings.TrimSuffix(path.Base(file), ".txtar"), File: file, Title: title(comment)}
	if s.Title == "" {
		p.fail(1, "the first line must be a comment that says what the scenario shows")
	}
	p.host(s, all)
	s.Steps = p.steps(all)
	return s, errors.Join(p.errs...)
}

func title(comment []byte) string {
	for line := range strings.Lines(string(comment)) {
		if t, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			return strings.TrimSpace(t)
		}
	}
	return ""
}

// parser collects the problems of one file.
type parser struct {
	file string
	errs []error
}

func (p *parser) fail(line int, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s:%d: %s", p.file, line, fmt.Sprintf(format, args...)))
}

// steps groups the sections by step. A step needs at least one section, so a gap in
// the numbers is an error.
func (p *parser) steps(all []section) []Step {
	byStep := map[int][]section{0: nil}
	for _, s := range all {
		byStep[s.step] = append(byStep[s.step], s)
	}
	var steps []Step
	folder := folder{files: map[string][]byte{DefaultNodeFile: []byte(DefaultNode)}, assumed: true}
	for n, number := range slices.Sorted(maps.Keys(byStep)) {
		if n != number {
			p.fail(byStep[number][0].line, "step %d without step %d", number, n)
		}
		step, next := p.step(number, byStep[number], folder)
		folder = next
		steps = append(steps, step)
	}
	return steps
}

func (p *parser) step(number int, all []section, before folder) (Step, folder) {
	step := Step{Number: number, Want: map[string]string{}}
	now := before.clone()
	for _, s := range all {
		mode, golden := s.mode()
		switch {
		case golden:
			step.Want[mode] = string(bytes.ReplaceAll(s.data, []byte("\r\n"), []byte("\n")))
		case s.name == "packets":
			step.Packets = p.table(s)
		case s.manifest():
			now.put(s.name, s.data)
		case s.name == "suspects":
			step.Suspects = p.suspects(s)
		case s.name == "clock":
			d, err := time.ParseDuration(strings.TrimSpace(string(s.data)))
			if err != nil || d < 0 {
				p.fail(s.line+1, "clock: %q is no duration", strings.TrimSpace(string(s.data)))
			}
			step.After = d
		case s.name == "rm":
			p.remove(s, before, &now)
		case s.name == "host" && number == 0: // read already
		default:
			p.fail(s.line, "%q is neither a manifest (.yaml, .yml, .json) nor host, packets, clock, suspects, rm or want/MODE", s.name)
		}
	}
	step.Files = now.files
	if number == 0 {
		before = folder{} // nothing has been written yet
	}
	step.Changed, step.Removed = FilesSince(now.files, before.files)
	step.Title = describe(number, step.Changed, step.Removed)
	return step, now
}

// suspects reads addresses, each with the word back or without.
func (p *parser) suspects(s section) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	i := 0
	for text := range strings.Lines(string(s.data)) {
		i++
		word, back := strings.CutSuffix(strings.TrimSpace(text), " back")
		a, err := netip.ParseAddr(word)
		if err != nil {
			p.fail(s.line+i, "suspects: %v", err)
		}
		all[a] = back
	}
	return all
}

func (p *parser) remove(s section, before folder, now *folder) {
	i := 0
	for text := range strings.Lines(string(s.data)) {
		i++
		name := strings.TrimSpace(text)
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		if _, ok := before.files[name]; !ok {
			p.fail(s.line+i, "rm: no file %q", name)
		}
		now.remove(name)
	}
}

func describe(number int, changed, removed []string) string {
	if number == 0 {
		return "beginning"
	}
	t := fmt.Sprintf("step %d:", number)
	if len(changed) > 0 {
		t += " write " + strings.Join(changed, ", ")
	}
	if len(removed) > 0 {
		t += " remove " + strings.Join(removed, ", ")
	}
	return t
}

// folder is the manifests' folder during the steps. It has the default Node until the
// scenario has a Node node-1 of its own.
type folder struct {
	files   map[string][]byte
	assumed bool // the Node is the default one
}

func (f folder) clone() folder { return folder{maps.Clone(f.files), f.assumed} }

func (f *folder) put(name string, data []byte) {
	if f.assumed && definesNode(data) {
		f.assumed = false
		delete(f.files, DefaultNodeFile)
	}
	f.files[name] = data
}

func (f *folder) remove(name string) {
	if name == DefaultNodeFile {
		f.assumed = false
	}
	delete(f.files, name)
}

// FilesSince compares two states of the folder.
func FilesSince(now, old map[string][]byte) (changed, removed []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if was, ok := old[name]; !ok || !bytes.Equal(was, now[name]) {
			changed = append(changed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, ok := now[name]; !ok {
			removed = append(removed, name)
		}
	}
	return changed, removed
}

// definesNode reports whether a manifest has a Node named node-1. It searches the
// text, because scenarios also have invalid manifests.
func definesNode(data []byte) bool {
	kind := regexp.MustCompile(`(?m)(^|[\s{,])"?kind"?:\s*"?Node"?\s*([,}]|$)`)
	name := regexp.MustCompile(`\bname"?:\s*"?` + regexp.QuoteMeta(NodeName) + `\b`)
	for doc := range bytes.SplitSeq(data, []byte("\n---")) {
		if kind.Match(doc) && name.Match(doc) {
			return true
		}
	}
	return false
}

// section is one file of an archive and its position.
type section struct {
	step int    // from the "N/" in front of the name; 0 without
	name string // without the step
	data []byte
	line int // of its marker, counted from 1
}

// sections splits an archive. Lines of txtar content map one to one to lines of the
// archive, which gives the positions that txtar does not report.
func sections(text []byte) (comment []byte, all []section, err error) {
	a := txtar.Parse(text)
	line := 1 + lines(a.Comment)
	type id struct {
		step int
		name string
	}
	seen := map[id]int{}
	for _, f := range a.Files {
		s := section{name: f.Name, data: f.Data, line: line}
		if number, name, ok := strings.Cut(f.Name, "/"); ok {
			if n, err := strconv.Atoi(number); err == nil {
				s.step, s.name = n, name
			}
		}
		if first := seen[id{s.step, s.name}]; first != 0 {
			return nil, nil, fmt.Errorf("%d: %q is already in line %d", line, f.Name, first)
		}
		seen[id{s.step, s.name}] = line
		all = append(all, s)
		line += 1 + lines(f.Data)
	}
	return a.Comment, all, nil
}

func lines(b []byte) int { return bytes.Count(b, []byte("\n")) }

// mode returns the mode of a golden.
func (s section) mode() (mode string, ok bool) { return strings.CutPrefix(s.name, "want/") }

// manifest reports whether a section is a file of the manifests' folder.
func (s section) manifest() bool {
	for _, ext := range []string{".yaml", ".yml", ".json"} {
		if strings.HasSuffix(s.name, ext) {
			return !strings.Contains(s.name, "/")
		}
	}
	return false
}
