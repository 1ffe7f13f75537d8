// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"bytes"
	"slices"
	"strings"
)

// Plain turns a document into JSON if it is written as nearly all manifests are: mappings
// and lists in blocks, or in one line with brackets; strings, numbers and booleans that
// have one meaning. It is exactly the JSON that Decode makes of what Parse returns, many
// times faster (FuzzPlain). Anything else is not plain, whether it is right or wrong: then
// ok is false, and Parse and Decode find out.
func Plain(text []byte) (json []byte, ok bool) {
	for _, c := range text {
		if (c < ' ' || c > '~') && c != '\n' {
			return nil, false
		}
	}
	p := plain{text: text, out: make([]byte, 0, len(text)+len(text)/2)}
	p.next()
	return p.out, p.block(p.indent, 0) && p.indent < 0
}

const (
	plainDepth = 16  // of nesting
	plainKeys  = 64  // of one mapping
	plainKey   = 512 // bytes
)

// plain is a reading of a document, line by line. Its methods return false for what is
// not plain.
type plain struct {
	text   []byte
	at     int // the next byte that is not read yet, in the present line
	end    int // of the line
	indent int // of the line, without the dashes that were read; -1 behind the last line
	out    []byte
}

// next goes to the next line that is neither empty nor a comment.
func (p *plain) next() {
	for start := p.end; start < len(p.text); start = p.end {
		if p.text[start] == '\n' {
			start++
		}
		p.end = len(p.text)
		if n := bytes.IndexByte(p.text[start:], '\n'); n >= 0 {
			p.end = start + n
		}
		p.at = start
		p.spaces()
		if p.at < p.end && p.text[p.at] != '#' {
			p.indent = p.at - start
			return
		}
		if p.end == start && start == len(p.text) {
			break
		}
	}
	p.indent = -1
}

func (p *plain) spaces() {
	for p.at < p.end && p.text[p.at] == ' ' {
		p.at++
	}
}

// peek returns the next byte of the line, 0 at its end.
func (p *plain) peek() byte {
	if p.at < p.end {
		return p.text[p.at]
	}
	return 0
}

// ended goes to the next line if there is nothing more in this one.
func (p *plain) ended() bool {
	p.spaces()
	if p.at < p.end {
		return false
	}
	p.next()
	return true
}

// dash reports whether the line begins with an item of a list.
func (p *plain) dash() bool {
	return p.at+1 < p.end && p.text[p.at] == '-' && p.text[p.at+1] == ' '
}

// block reads the mapping or list whose lines have an indentation.
func (p *plain) block(indent, depth int) bool {
	switch {
	case indent < 0 || depth > plainDepth:
		return false
	case p.dash():
		return p.list(indent, depth)
	}
	return p.mapping(indent, depth)
}

func (p *plain) list(indent, depth int) bool {
	p.out = append(p.out, '[')
	for n := 0; p.indent == indent && p.dash(); n++ {
		if n > 0 {
			p.out = append(p.out, ',')
		}
		dash := p.at
		p.at++
		p.spaces()
		p.indent += p.at - dash
		if p.dash() {
			return false
		}
		if p.isKey() {
			if !p.mapping(p.indent, depth+1) {
				return false
			}
		} else if !p.value(depth+1) || !p.ended() {
			return false
		}
	}
	p.out = append(p.out, ']')
	return p.indent <= indent
}

// isKey reports whether a key of a block is next.
func (p *plain) isKey() bool {
	n := p.keyLen()
	return n > 0 && p.at+n < p.end && p.text[p.at+n] == ':' && (p.at+n+1 == p.end || p.text[p.at+n+1] == ' ')
}

// keyLen is the length of the key that is next, without its colon; 0 if it is not plain.
func (p *plain) keyLen() int {
	n := 0
	for p.at+n < p.end && isKeyByte(p.text[p.at+n]) {
		n++
	}
	if n == 0 || n > plainKey || !letter(p.text[p.at]) || special(p.text[p.at:p.at+n]) {
		return 0
	}
	return n
}

func letter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
func digit(c byte) bool  { return '0' <= c && c <= '9' }

func isKeyByte(c byte) bool {
	return letter(c) || digit(c) || c == '.' || c == '_' || c == '/' || c == '-'
}

// keys are those of one mapping so far, to find one that is there twice.
type keys struct {
	names [plainKeys][]byte
	n     int
}

// key reads a key and its colon.
func (p *plain) key(known *keys) bool {
	n := p.keyLen()
	if n == 0 || p.at+n >= p.end || p.text[p.at+n] != ':' || known.n == plainKeys {
		return false
	}
	name := p.text[p.at : p.at+n]
	if slices.ContainsFunc(known.names[:known.n], func(k []byte) bool { return bytes.Equal(k, name) }) {
		return false
	}
	known.names[known.n] = name
	known.n++
	p.string(name)
	p.out = append(p.out, ':')
	p.at += n + 1
	return true
}

func (p *plain) mapping(indent, depth int) bool {
	if depth > plainDepth {
		return false
	}
	p.out = append(p.out, '{')
	var known keys
	for p.indent == indent {
		if known.n > 0 {
			p.out = append(p.out, ',')
		}
		if !p.isKey() || !p.key(&known) {
			return false
		}
		p.spaces()
		if p.at < p.end {
			if !p.value(depth+1) || !p.ended() {
				return false
			}
			continue
		}
		p.next()
		switch {
		case p.indent > indent, p.indent == indent && p.dash():
			if !p.block(p.indent, depth+1) {
				return false
			}
		default:
			p.out = append(p.out, "null"...)
		}
	}
	p.out = append(p.out, '}')
	return p.indent < indent
}

// value reads a value of a block that begins in the line, and ends in it.
func (p *plain) value(depth int) bool {
	switch p.peek() {
	case '{', '[', '"', '\'':
		return p.flow(depth)
	}
	start := p.at
	for p.at < p.end {
		c := p.text[p.at]
		if !isKeyByte(c) && strings.IndexByte(" :=+,@%", c) < 0 || c == ':' && (p.at+1 == p.end || p.text[p.at+1] == ' ') {
			return false
		}
		p.at++
	}
	return p.scalar(bytes.TrimRight(p.text[start:p.end], " "))
}

// flow reads a value in brackets or quotes, or one inside of brackets.
func (p *plain) flow(depth int) bool {
	if depth > plainDepth {
		return false
	}
	switch c := p.peek(); c {
	case '{':
		var known keys
		return p.items('{', '}', func() bool {
			if !p.key(&known) || p.peek() != ' ' {
				return false
			}
			p.spaces()
			return p.flow(depth + 1)
		})
	case '[':
		return p.items('[', ']', func() bool { return p.flow(depth + 1) })
	case '"', '\'':
		return p.quoted(c)
	}
	start := p.at
	for p.at < p.end && (isKeyByte(p.text[p.at]) || p.text[p.at] == ':' && p.at+1 < p.end && (isKeyByte(p.text[p.at+1]) || p.text[p.at+1] == ':')) {
		p.at++
	}
	return p.scalar(p.text[start:p.at])
}

// items reads what is between brackets.
func (p *plain) items(open, closing byte, item func() bool) bool {
	p.out = append(p.out, open)
	p.at++
	p.spaces()
	for n := 0; p.peek() != closing; n++ {
		if n > 0 {
			if p.peek() != ',' {
				return false
			}
			p.at++
			p.spaces()
			p.out = append(p.out, ',')
		}
		if !item() {
			return false
		}
		p.spaces()
	}
	p.at++
	p.out = append(p.out, closing)
	return true
}

// quoted reads a string in quotes, without escapes.
func (p *plain) quoted(quote byte) bool {
	n := bytes.IndexByte(p.text[p.at+1:p.end], quote)
	if n < 0 {
		return false
	}
	s := p.text[p.at+1 : p.at+1+n]
	p.at += n + 2
	if p.peek() == quote || bytes.IndexByte(s, '\\') >= 0 || bytes.IndexByte(s, '"') >= 0 {
		return false
	}
	p.string(s)
	return true
}

func (p *plain) string(s []byte) {
	p.out = append(p.out, '"')
	p.out = append(p.out, s...)
	p.out = append(p.out, '"')
}

// scalar writes a value without quotes, if there is no doubt what it is.
func (p *plain) scalar(s []byte) bool {
	switch {
	case len(s) == 0:
		return false
	case string(s) == "true", string(s) == "false", string(s) == "null", plainNumber(string(s)) && s[0] != '-':
		p.out = append(p.out, s...)
		return true
	case letter(s[0]) && !special(s), digit(s[0]) && noNumber(s):
		p.string(s)
		return true
	}
	return false
}

// special reports whether a word that begins with a letter is, or was once, no string.
func special(s []byte) bool {
	if len(s) > len("false") {
		return false
	}
	switch strings.ToLower(string(s)) {
	case "y", "yes", "n", "no", "on", "off", "true", "false", "null":
		return true
	}
	return false
}

// noNumber reports whether a word that begins with a digit can be neither a number nor a
// time in any spelling: an address, or a name with letters that no number has.
func noNumber(s []byte) bool {
	if len(s) > 4 && s[4] == '-' || len(s) > 1 && s[0] == '0' && letter(s[1]) || bytes.IndexByte(s, '_') >= 0 {
		return false
	}
	return bytes.Count(s, []byte(".")) > 1 || bytes.IndexByte(s, '/') > 0 || bytes.IndexByte(s, ':') > 0 ||
		bytes.ContainsFunc(s, func(r rune) bool { return letter(byte(r)) && r|0x20 != 'e' })
}
