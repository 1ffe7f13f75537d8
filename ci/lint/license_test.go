// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"bytes"
	"flag"
	"os"
	"path"
	"strings"
	"testing"
)

// spdx is the line that every source has; LICENSE has the text.
const spdx = "SPDX-License-Identifier: Apache-2.0"

var update = flag.Bool("update", false, "add the license line to the sources below TANDEM_SPDX, or to all")

// licensed returns a source with the license line, whether it had one, and
// whether it is a source at all: Go, PowerShell, or a script with a first line
// that names its interpreter.
func licensed(name string, text []byte) (with []byte, had, source bool) {
	comment, rest, head := "", text, []byte(nil)
	first, after, _ := bytes.Cut(text, []byte("\n"))
	switch ext := path.Ext(name); {
	case ext == ".go":
		comment = "// "
	case bytes.HasPrefix(first, []byte("#!")):
		comment, head, rest = "# ", append(bytes.Clone(first), '\n'), after
	case ext == ".ps1" || bytes.HasPrefix(first, []byte("# shellcheck shell=")):
		comment = "# "
	default:
		return text, false, false
	}
	line := []byte(comment + spdx + "\n")
	if bytes.HasPrefix(rest, line) {
		return text, true, true
	}
	if comment == "// " { // what follows may be a doc comment, which it is no part of
		line = append(line, '\n')
	}
	return bytes.Join([][]byte{head, line, rest}, nil), false, true
}

// TestLicenseLines: `go test ./ci/lint -run LicenseLines -update` adds what is
// missing.
func TestLicenseLines(t *testing.T) {
	t.Chdir("../..")
	if text, err := os.ReadFile("LICENSE"); err != nil || !bytes.Contains(text, []byte("Apache License\n")) {
		t.Fatal("LICENSE is another one", err)
	}
	missing := 0
	for _, file := range tracked(t, "") {
		info, err := os.Lstat(file)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		with, had, source := licensed(file, text)
		switch {
		case had || !source:
		case *update && strings.HasPrefix(file, os.Getenv("TANDEM_SPDX")):
			if err := os.WriteFile(file, with, info.Mode()); err != nil {
				t.Fatal(err)
			}
		default:
			if missing++; missing <= 10 {
				t.Errorf("%s has no line %s", file, spdx)
			}
		}
	}
	if missing > 10 {
		t.Errorf("and %d more; go test ./ci/lint -run LicenseLines -update adds them", missing-10)
	}
}

func TestLicensed(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"a.go":  {"package a\n", "// " + spdx + "\n\npackage a\n"},
		"run":   {"#!/bin/sh\nset -e\n", "#!/bin/sh\n# " + spdx + "\nset -e\n"},
		"tools": {"# shellcheck shell=bash\n", "# " + spdx + "\n# shellcheck shell=bash\n"},
		"a.md":  {"# Title\n", "# Title\n"},
	} {
		with, had, source := licensed(name, []byte(c.before))
		if string(with) != c.after || had || source == (name == "a.md") {
			t.Errorf("%s becomes %q (%t, %t)", name, with, had, source)
		}
		if again, had, source := licensed(name, with); source && (!had || string(again) != c.after) {
			t.Errorf("%s becomes %q the second time (%t)", name, again, had)
		}
	}
}
