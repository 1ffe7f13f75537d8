package manifests

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

// parse parses a document as YAML, of which JSON is a part.
func parse(doc document) (root *yaml.Node, bad *fault) {
	defer func() { // the parser is not ours, and the folder may hold anything
		if r := recover(); r != nil {
			root, bad = nil, &fault{line: 0, text: fmt.Sprintf("cannot be parsed: %v", r)}
		}
	}()
	var n, rest yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(joinSurrogates(doc.text)))
	err := dec.Decode(&n)
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(n.Content) == 0:
		return nil, &fault{text: "is empty"}
	case err != nil:
		return nil, syntaxFault(doc.text, err)
	}
	// A line break that only YAML takes for one, such as U+2028, may hide a
	// second document. What is not read must not pass in silence.
	if err := dec.Decode(&rest); !errors.Is(err, io.EOF) {
		return nil, &fault{text: "has something behind its end"}
	}
	return n.Content[0], nil
}

// joinSurrogates replaces the escapes of JSON for characters beyond 16 bits, such as
// \ud83d\ude00, by the character itself, and half of one by U+FFFD, as decoders of
// JSON do: YAML knows no pairs. Lines stay where they are. Text that is not JSON is
// left alone.
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

// culprit finds the line of an error that comes without one.
func culprit(text []byte, why string) int {
	if m := unknownAnchor.FindStringSubmatch(why); m != nil {
		return lineAt(text, bytes.Index(text, []byte("*"+m[1])))
	}
	control := func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == 0x7F }
	if i := bytes.IndexFunc(text, control); i >= 0 {
		return lineAt(text, i)
	}
	return 0
}

// syntaxFault turns an error of the YAML parser into a fault. JSON is reported
// by its own parser, which is more to the point.
func syntaxFault(text []byte, err error) *fault {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		var v any
		jerr := strictjson.UnmarshalCaseSensitivePreserveInts(text, &v)
		if ok, offset := strictjson.SyntaxErrorOffset(jerr); ok {
			return &fault{line: lineAt(text, int(offset)), text: jerr.Error()}
		}
	}
	m := yamlLine.FindStringSubmatch(err.Error())
	f := &fault{text: strings.TrimPrefix(err.Error(), m[0])}
	if n, err := strconv.Atoi(m[1]); err == nil {
		f.line = n - 1
		if parserError.MatchString(f.text) {
			f.line++
		}
	} else {
		f.line = culprit(text, f.text)
	}
	f.line = min(max(f.line, 0), lineAt(text, len(bytes.TrimRight(text, " \t\r\n"))))
	if tab := tabIndent(text); tab >= 0 {
		f.line, f.text = tab, "a tab in the indentation: YAML wants spaces"
	}
	return f
}

// tabIndent returns the first line that is indented by a tab, or -1.
func tabIndent(text []byte) int {
	for pos, line := 0, 0; pos < len(text); line++ {
		next := nextLine(text, pos)
		l := text[pos:next]
		if indent := l[:len(l)-len(bytes.TrimLeft(l, " \t"))]; bytes.IndexByte(indent, '\t') >= 0 && len(bytes.TrimSpace(l)) > 0 {
			return line
		}
		pos = next
	}
	return -1
}

var template = regexp.MustCompile(`\{\{-? *[.$a-z"(/][^\n{}]*\}\}`)

// unrendered returns the fault of a Helm template that was never rendered. It
// is the only one worth telling: all others follow from it.
func unrendered(text []byte) *fault {
	at := template.FindIndex(text)
	return &fault{line: lineAt(text, at[0]), text: quoted(string(text[at[0]:at[1]])) +
		" is a Helm template: render it first, with `helm template`"}
}

// lineOf returns a line, counted from 0.
func lineOf(text []byte, line int) []byte {
	pos := 0
	for range line {
		pos = nextLine(text, pos)
	}
	return text[pos:nextLine(text, pos)]
}

// entry returns the key and the value of an entry of a mapping, or nil.
func entry(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if key, value = n.Content[i], n.Content[i+1]; key.Kind == yaml.ScalarNode && key.Value == name {
			if value.Kind == yaml.AliasNode {
				value = value.Alias
			}
			return key, value
		}
	}
	return nil, nil
}

// get returns the value of a key, or nil.
func get(n *yaml.Node, name string) *yaml.Node {
	_, value := entry(n, name)
	return value
}

// text returns the string value of a key, or "".
func text(n *yaml.Node, name string) string {
	if v := get(n, name); v != nil && v.Kind == yaml.ScalarNode && v.ShortTag() == "!!str" {
		return v.Value
	}
	return ""
}

// lineOfField returns the line, counted from 0, of a path such as
// "spec.ports[1].port", or of as much of it as is there.
func lineOfField(n *yaml.Node, path string) int {
	line := n.Line
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		key, next := entry(n, step)
		if i, err := strconv.Atoi(step); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
			key, next = n.Content[i], n.Content[i]
		}
		if next == nil {
			break
		}
		line, n = key.Line, next
	}
	return line - 1
}
