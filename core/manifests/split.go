package manifests

import (
	"bytes"
	"strings"
)

// document is a piece of a file that is decoded on its own: what stands between
// two "---", or one item of a List. A change to one leaves the others as they
// were, both good and bad.
type document struct {
	text []byte // part of the file's content
	line int    // where text starts in the file, counted from 1
	item bool   // cut out of a list
	kind string // what an item of a typed list is, such as "Service"; else empty
}

// split cuts a file into documents. It looks at the text only: a marker at the
// start of a line ends a document whatever it stands in, by the YAML
// specification (1.2.2, 9.1.2), so that a broken document cannot swallow the
// next one. Comments and directives in front of a document are not part of it,
// and where there is nothing else there is no document. At most max+1 documents
// are returned.
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

func nextLine(text []byte, pos int) int {
	if i := bytes.IndexByte(text[pos:], '\n'); i >= 0 {
		return pos + i + 1
	}
	return len(text)
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
		next := nextLine(text, pos)
		if l := bytes.TrimSpace(text[pos:next]); len(l) > 0 && l[0] != '#' && l[0] != '%' {
			return pos
		}
		pos = next
	}
	return len(text)
}
