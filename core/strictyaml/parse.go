// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	strictjson "sigs.k8s.io/json"
)

// Parse parses a document as YAML, of which JSON is a part. After is the line, from
// 0, of a second document, or -1 if there is none: it is the caller's to refuse.
// Root is nil if the text holds nothing.
func Parse(text []byte) (root *yaml.Node, after int, bad *Fault) {
	defer func() { // the parser is a library, and the text may be anything
		if r := recover(); r != nil {
			root, after, bad = nil, -1, &Fault{Text: fmt.Sprintf("cannot be parsed: %v", r)}
		}
	}()
	var n, rest yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(joinSurrogates(text)))
	err := dec.Decode(&n)
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(n.Content) == 0:
		return nil, -1, nil
	case err != nil:
		return nil, -1, syntaxFault(text, err)
	}
	after = -1
	if err := dec.Decode(&rest); !errors.Is(err, io.EOF) {
		after = max(rest.Line-1, 0)
	}
	return n.Content[0], after, nil
}

// joinSurrogates replaces the escapes of JSON for characters beyond 16 bits, such as
// \ud83d\ude00, by the character itself, and half of one by U+FFFD, as decoders of
// JSON do: YAML has no surrogate pairs. Lines stay the same. Text that is not JSON is
// returned unchanged.
func joinSurrogates(text []byte) []byte {
	if !bytes.Contains(text, []byte(`\u`)) || !json.Valid(text) {
		return text
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		r, ok := escaped(text[i:])
		switch {
		case text[i] != '\\':
			out, i = append(out, text[i]), i+1
		case !ok || !utf16.IsSurrogate(r):
			out, i = append(out, text[i:i+2]...), i+2 // the second byte may be a backslash
		default:
			i += len(`\u0000`)
			low, _ := escaped(text[i:])
			if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
				i += len(`\u0000`)
			}
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// escaped returns the character of an escape such as \u00e9 that text begins with.
func escaped(text []byte) (r rune, ok bool) {
	if len(text) < len(`\u0000`) || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(n), err == nil
}

var (
	yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

	// The library counts the lines of its parser's errors from 0 and those of
	// its scanner's from 1. These are the parser's.
	parserError = regexp.MustCompile(`^did not find expected ('-'|key|node|',')`)

	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.+)'`)
)

// lineWithout finds the line of an error that has none.
func lineWithout(text []byte, why string) int {
	if m := unknownAnchor.FindStringSubmatch(why); m != nil {
		return LineAt(text, bytes.Index(text, []byte("*"+m[1])))
	}
	control := func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == 0x7F }
	if i := bytes.IndexFunc(text, control); i >= 0 {
		return LineAt(text, i)
	}
	return 0
}

// syntaxFault turns an error of the YAML parser into a fault. For JSON the error is
// that of a JSON parser, which is clearer.
func syntaxFault(text []byte, err error) *Fault {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		var v any
		jerr := strictjson.UnmarshalCaseSensitivePreserveInts(text, &v)
		if ok, offset := strictjson.SyntaxErrorOffset(jerr); ok {
			return &Fault{Line: LineAt(text, int(offset)), Text: jerr.Error()}
		}
	}
	m := yamlLine.FindStringSubmatch(err.Error())
	f := &Fault{Text: strings.TrimPrefix(err.Error(), m[0])}
	if n, err := strconv.Atoi(m[1]); err == nil {
		f.Line = n - 1
		if parserError.MatchString(f.Text) {
			f.Line++
		}
	} else {
		f.Line = lineWithout(text, f.Text)
	}
	f.Line = min(max(f.Line, 0), LineAt(text, len(bytes.TrimRight(text, " \t\r\n"))))
	if tab := tabIndent(text); tab >= 0 {
		f.Line, f.Text = tab, "a tab in the indentation: YAML needs spaces"
	}
	return f
}

// tabIndent returns the first line that is indented by a tab, or -1.
func tabIndent(text []byte) int {
	for pos, line := 0, 0; pos < len(text); line++ {
		next := NextLine(text, pos)
		l := text[pos:next]
		if indent := l[:len(l)-len(bytes.TrimLeft(l, " \t"))]; bytes.IndexByte(indent, '\t') >= 0 && len(bytes.TrimSpace(l)) > 0 {
			return line
		}
		pos = next
	}
	return -1
}
