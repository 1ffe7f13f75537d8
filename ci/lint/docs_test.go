// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

var (
	// mention is a file or folder of this tree in a text: `core/model`.
	mention = regexp.MustCompile("`((?:core|linux|windows|platform|cmd|ci|installers)/[\\w./-]+)`")
	// link is a relative link to a file, with a heading or without.
	link = regexp.MustCompile(`\]\(([\w./-]+)(?:#[\w-]+)?\)`)
	// command is a command of this tree: `make test`, `tandem status`.
	command = regexp.MustCompile("(?m)(?:`|^    (?:bin/)?|^ *\\$ )(make|tandem) ([a-z][a-z0-9-]*)")
	// testName is the name of a test or a fuzz target, or what -run begins with.
	testName = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`)
)

// missing returns what a text names that is not there. Mentions start at the
// root, links at the text's folder.
func missing(root fs.FS, file, text string) (names []string) {
	look := func(name string) {
		if _, err := fs.Stat(root, path.Clean(name)); err != nil {
			names = append(names, name)
		}
	}
	for _, found := range mention.FindAllStringSubmatch(text, -1) {
		look(found[1])
	}
	for _, found := range link.FindAllStringSubmatch(text, -1) {
		look(path.Join(path.Dir(file), found[1]))
	}
	return names
}

// tracked returns the files of the tree with one of some endings.
func tracked(t *testing.T, endings ...string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (name == ".git" || name == "bin" || name == "dist") {
			return filepath.SkipDir
		}
		for _, ending := range endings {
			if err == nil && !entry.IsDir() && strings.HasSuffix(name, ending) {
				files = append(files, filepath.ToSlash(name))
			}
		}
		return err
	})
	if err != nil || len(files) < 5 {
		t.Fatal(len(files), err)
	}
	return files
}

func TestTextsNameWhatIsThere(t *testing.T) {
	t.Chdir("../..")
	for _, file := range tracked(t, ".md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range missing(os.DirFS("."), file, string(text)) {
			t.Errorf("%s names %s, which is not there", file, name)
		}
	}
	const wrong = "`core/gone`, [a](gone.md), [b](../core/model), `core/model`"
	if got := missing(os.DirFS("."), "ci/x.md", wrong); len(got) != 2 {
		t.Errorf("of %s these are missing: %v", wrong, got)
	}
}

// sources returns the text of the files that match a pattern.
func sources(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatal(pattern, err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Each `make TARGET`, `tandem VERB` and TestNAME in a text is there; the changelog also
// names what was once.
func TestTextsNameCommandsAndTests(t *testing.T) {
	t.Chdir("../..")
	var tests strings.Builder
	for _, file := range tracked(t, "_test.go") {
		tests.WriteString(sources(t, file))
	}
	makefile, verbs := "\n"+sources(t, "Makefile"), sources(t, "cmd/tandem/*.go")
	unknown := func(text string) (names []string) {
		for _, found := range command.FindAllStringSubmatch(text, -1) {
			if found[1] == "make" && !strings.Contains(makefile, "\n"+found[2]+":") || found[1] == "tandem" && !strings.Contains(verbs, `"`+found[2]) {
				names = append(names, found[1]+" "+found[2])
			}
		}
		for _, name := range testName.FindAllString(text, -1) {
			if !strings.Contains(tests.String(), "\nfunc "+name) {
				names = append(names, name)
			}
		}
		return names
	}
	for _, file := range tracked(t, ".md") {
		if path.Base(file) == "CHANGELOG.md" {
			continue
		}
		if names := unknown(sources(t, file)); len(names) > 0 {
			t.Errorf("%s names %q, which are not there", file, names)
		}
	}
	if got := unknown("`make tea`, `make test`\n    bin/tandem dance\n$ tandem status\nTestTeaTime, TestTextsName"); len(got) != 3 {
		t.Errorf("not found are %q", got)
	}
}

// faults returns the lines of a changelog that have not the form: none is longer than
// 120 characters; in versions after the first, heads are known, and an entry is one line.
func faults(text string) (wrong []string) {
	later, _, _ := strings.Cut(text, "\n## 0.1.0\n")
	heads := []string{"### Added", "### Changed", "### Fixed", "### Security"}
	entry := false
	for i, line := range strings.Split(text, "\n") {
		if i <= strings.Count(later, "\n") {
			goesOn := entry && line != "" && !strings.HasPrefix(line, "- ")
			if goesOn || strings.HasPrefix(line, "### ") && !slices.Contains(heads, line) {
				wrong = append(wrong, line)
			}
			entry = strings.HasPrefix(line, "- ")
		}
		if utf8.RuneCountInString(line) > 120 {
			wrong = append(wrong, line)
		}
	}
	return wrong
}

func TestTheChangelogIsShort(t *testing.T) {
	text, err := os.ReadFile("../../.github/CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range faults(string(text)) {
		t.Errorf("CHANGELOG.md: %s", line)
	}
	const later = "# Changes\n\n## 0.2.0\n\n### Added\n\n- a thing\n- a thing that\n  has two lines\n\n### Improved\n"
	if got := faults(later + "- " + strings.Repeat("x", 119) + "\n\n## 0.1.0\n\n### What it is\n\n- two\n  lines\n"); len(got) != 3 {
		t.Errorf("wrong are %q", got)
	}
}

// Every attack of the threat model names a test.
func TestEveryAttackHasATest(t *testing.T) {
	attacks := 0
	for line := range strings.Lines(sources(t, "../../.github/SECURITY.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.Trim(cells[2], " -") == "" || strings.TrimSpace(cells[2]) == "test" {
			continue
		}
		if attacks++; !testName.MatchString(cells[2]) {
			t.Errorf("SECURITY.md: no test of %s", cells[0])
		}
	}
	if attacks < 30 {
		t.Errorf("only %d attacks", attacks)
	}
}

// golangci-lint, for contributors who use it, checks what `make lint` does.
func TestLintersAgree(t *testing.T) {
	t.Chdir("../..")
	text, err := os.ReadFile(".golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Settings struct {
				Staticcheck struct{ Checks []string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("ci/lint/run")
	if err != nil {
		t.Fatal(err)
	}
	checks := strings.Join(config.Linters.Settings.Staticcheck.Checks, ",")
	if !strings.Contains(string(script), "\nchecks="+checks+"\n") {
		t.Errorf("ci/lint/run does not have checks=%s of .golangci.yml", checks)
	}
}
