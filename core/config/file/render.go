// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
)

// Render writes a configuration as a KubeProxyConfiguration with every field,
// which kube-proxy reads as well. Explained puts before each field what it does.
// The result is YAML with JSON's scalars.
func Render(c *config.Config, explained bool) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "apiVersion: %s\nkind: %s\n", apiVersion, kind)
	var open []string // the sections that the last field was in
	preset := config.Default()
	for _, s := range config.Settings() {
		if s.Path == "" {
			continue
		}
		steps := strings.Split(s.Path, ".")
		up := steps[:len(steps)-1]
		shared := 0
		for shared < min(len(open), len(up)) && open[shared] == up[shared] {
			shared++
		}
		if explained && len(up) == 0 {
			out.WriteByte('\n')
		}
		for i := shared; i < len(up); i++ {
			if explained && i == 0 {
				out.WriteByte('\n')
			}
			fmt.Fprintf(&out, "%s%s:\n", indent(i), up[i])
		}
		open = up
		from := c
		if s.Counts != nil && !s.Counts(c.Mode) {
			from = &preset
		}
		if explained {
			comment(&out, &s, len(up))
		}
		fmt.Fprintf(&out, "%s%s: %s\n", indent(len(up)), steps[len(up)], inline(s.Plain(from)))
	}
	return out.Bytes()
}

func indent(depth int) string { return strings.Repeat("  ", depth) }

// inline writes a value in one line.
func inline(v any) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // plain values only
	}
	return bytes.TrimSpace(out.Bytes())
}

// comment writes what a field does, and how else it is set.
func comment(out *bytes.Buffer, s *config.Setting, depth int) {
	text := s.Doc
	if s.Unused != "" {
		text += " Tandem accepts it and does nothing with it: " + s.Unused + "."
	}
	if s.Flag != "" {
		text += " Flag: --" + s.Flag + "."
	}
	if s.Restart != "" {
		text += " A change needs a restart."
	}
	for _, line := range Wrap(text, 78-2*depth) {
		fmt.Fprintf(out, "%s# %s\n", indent(depth), line)
	}
}

// Wrap breaks a text into lines of at most so many bytes, unless a word is
// longer.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
