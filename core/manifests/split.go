// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-proxy/tandem/core/strictyaml"
)

// document is a part of a file that is decoded on its own: the text between two
// "---", or one item of a List. A change to one does not affect the others.
type document struct {
	text []byte // part of the file's content
	line int    // where text starts in the file, counted from 1
	item bool   // cut out of a list
	kind string // what an item of a typed list is, such as "Service"; else empty
}

// split cuts a file into documents. It looks at the text only: a marker at the start
// of a line ends a document in any context, by the YAML specification (1.2.2, 9.1.2),
// so that an invalid document does not affect the next one. Comments and directives
// in front of a document are not part of it; without anything else there is no
// document. At most max+1 documents are returned.
func split(text []byte, max int) []document {
	var docs []document
	marks := markers{text: text, next: [2]int{-1, -1}}
	lines := lineCounter{text: text, line: 1}
	for start := 0; start < len(text) && len(docs) <= max; {
		end := marks.from(start)
		if body := start + content(text[start:end]); body < end {
			docs = unfold(docs, document{text: text[body:end], line: lines.at(body)}, max-len(docs))
		}
		start = end + len("---")
	}
	return docs[:min(len(docs), max+1)]
}

// markers finds the lines that end a document, looking at each byte at most
// twice.
type markers struct {
	text []byte
	next [2]int // the next line that starts with "---" and with "..."
}

// from returns the first marker at or after an offset, or the end of the text.
// The offset must not shrink between calls.
func (m *markers) from(pos int) int {
	for i, mark := range []string{"---", "..."} {
		if m.next[i] < pos {
			m.next[i] = m.find(mark, pos)
		}
	}
	return min(m.next[0], m.next[1])
}

func (m *markers) find(mark string, pos int) int {
	for pos < len(m.text) {
		i := bytes.Index(m.text[pos:], []byte(mark))
		if i < 0 {
			break
		}
		if pos += i; (pos == 0 || m.text[pos-1] == '\n') && marker(m.text[pos:]) {
			return pos
		}
		pos++
	}
	return len(m.text)
}

// marker reports whether a line starts or ends a document.
func marker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false
	}
	return len(line) == 3 || strings.IndexByte(" \t\r\n", line[3]) >= 0
}

// content returns the offset of the first line that is neither empty nor a
// comment nor a directive.
func content(text []byte) int {
	for pos := 0; pos < len(text); {
		next := strictyaml.NextLine(text, pos)
		if l := bytes.TrimSpace(text[pos:next]); len(l) > 0 && l[0] != '#' && l[0] != '%' {
			return pos
		}
		pos = next
	}
	return len(text)
}

// unfold appends a document, split further if that is simple: into the items of a
// List, as `kubectl get -o yaml` and `-o json` print them, or into consecutive JSON
// values. A document in another format stays whole, and the decoder handles it. No
// more than max+1 documents are appended.
func unfold(docs []document, d document, max int) []document {
	var parts []document
	if bytes.TrimLeft(d.text, " \t")[0] == '{' {
		parts = unfoldJSON(d, max)
	} else {
		parts = unfoldYAML(d, max)
	}
	if parts == nil {
		return append(docs, d)
	}
	return append(docs, parts...)
}

// itemKind returns the kind of the items of a list kind: "" for a List, whose items
// have their own kind. ok is false if it is not a list.
func itemKind(listKind string) (kind string, ok bool) {
	return strings.CutSuffix(listKind, "List")
}

// unfoldYAML cuts the items of a block-style list at their dashes, or returns
// nil. Nothing inside an item is as far left as its dash, but comments.
func unfoldYAML(d document, max int) []document {
	if !bytes.Contains(d.text, []byte("items:")) {
		return nil
	}
	before, body, after, ok := cutItems(d.text)
	if !ok || bytes.Contains(body, []byte(": *")) || bytes.Contains(body, []byte("- *")) {
		return nil // an alias may point from one item into another
	}
	head, bad := parse(append(bytes.Clone(before), after...))
	if bad != nil {
		return nil
	}
	kind, ok := itemKind(strictyaml.String(head, "kind"))
	if !ok {
		return nil
	}
	indent := content(body) + bytes.IndexByte(body[content(body):], '-')
	dash := append([]byte("\n"), body[content(body):indent]...)
	dash = append(dash, "- "...)
	var items []document
	line := d.line + bytes.Count(before, []byte("\n")) + 1
	for len(body) > 0 && len(items) <= max {
		end := len(body)
		if i := bytes.Index(body[min(content(body), len(body)):], dash); i >= 0 {
			end = content(body) + i + 1
		}
		items = append(items, document{text: body[:end], line: line, item: true, kind: kind})
		line += bytes.Count(body[:end], []byte("\n"))
		body = body[end:]
	}
	return items
}

// cutItems cuts a block-style list around the lines that follow "items:". ok is
// false if there are none or the first of them is no item.
func cutItems(text []byte) (before, body, after []byte, ok bool) {
	for pos := 0; pos < len(text); {
		next := strictyaml.NextLine(text, pos)
		if string(bytes.TrimRight(text[pos:next], " \t\r\n")) == "items:" {
			end := endOfItems(text, next)
			body = text[next:end]
			first := bytes.TrimLeft(body[content(body):], " ")
			return text[:pos], body, text[end:], bytes.HasPrefix(first, []byte("- "))
		}
		pos = next
	}
	return nil, nil, nil, false
}

// endOfItems returns where the next key of the list itself starts.
func endOfItems(text []byte, pos int) int {
	for pos < len(text) {
		switch text[pos] {
		case ' ', '-', '#', '\r', '\n':
			pos = strictyaml.NextLine(text, pos)
		default:
			return pos
		}
	}
	return pos
}

// unfoldJSON cuts JSON values that follow one another, and the items of those
// that are lists. It returns nil if the text is not JSON to its end.
func unfoldJSON(d document, max int) []document {
	dec := json.NewDecoder(bytes.NewReader(d.text))
	var parts []document
	cut := lineCounter{text: d.text, line: d.line}
	for dec.More() && len(parts) <= max {
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return nil
		}
		end := int(dec.InputOffset())
		part := document{text: d.text[end-len(value) : end]}
		part.line = cut.at(end - len(value))
		if items := itemsJSON(part, max); items != nil {
			parts = append(parts, items...)
		} else {
			parts = append(parts, part)
		}
	}
	return parts
}

// itemsJSON returns the items of a list, or nil if it is none.
func itemsJSON(d document, max int) []document {
	if !bytes.Contains(d.text, []byte(`"items"`)) {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(d.text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	var listKind string
	var items []document
	for dec.More() {
		key, err := dec.Token()
		switch {
		case err != nil:
		case key == "items":
			items, err = elements(dec, d, max)
		case key == "kind":
			err = dec.Decode(&listKind)
		default:
			var skipped json.RawMessage
			err = dec.Decode(&skipped)
		}
		switch {
		case err != nil:
			return nil
		case len(items) > max:
			return items // rejected anyway
		}
	}
	kind, ok := itemKind(listKind)
	if !ok {
		return nil
	}
	for i := range items {
		items[i].item, items[i].kind = true, kind
	}
	return items
}

// elements cuts a JSON array, no further than max+1.
func elements(dec *json.Decoder, d document, max int) (items []document, err error) {
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.Join(err, errNoArray)
	}
	cut := lineCounter{text: d.text, line: d.line}
	for dec.More() && len(items) <= max {
		var item json.RawMessage
		if err := dec.Decode(&item); err != nil {
			return nil, err
		}
		end := int(dec.InputOffset())
		items = append(items, document{text: d.text[end-len(item) : end], line: cut.at(end - len(item))})
	}
	if len(items) <= max {
		_, err = dec.Token()
	}
	return items, err
}

var errNoArray = errors.New("no array")

// lineCounter returns the lines of increasing offsets, looking at each byte once.
type lineCounter struct {
	text []byte
	pos  int
	line int
}

func (c *lineCounter) at(offset int) int {
	c.line += bytes.Count(c.text[c.pos:offset], []byte("\n"))
	c.pos = offset
	return c.line
}

// parse parses a document. A line break that only YAML has, such as U+2028, may hide
// a second document, which must not be ignored.
func parse(text []byte) (*yaml.Node, *fault) {
	root, after, bad := strictyaml.Parse(text)
	switch {
	case bad != nil:
		return nil, &fault{line: bad.Line, text: bad.Text}
	case root == nil:
		return nil, &fault{text: "is empty"}
	case after >= 0:
		return nil, &fault{text: "has data after its end"}
	}
	return root, nil
}
