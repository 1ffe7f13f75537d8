// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"bytes"
	"encoding/binary"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns the content of a file as UTF-8 without byte order mark. It may change
// data. UTF-16 with a mark is converted, since that is what redirecting output in
// Windows PowerShell writes. For anything that is not text why is not empty, and
// line, from 1, states where.
func Text(data []byte) (text []byte, line int, why string) {
	switch {
	case bytes.HasPrefix(data, []byte{0xEF, 0xBB, 0xBF}):
		data = data[3:]
	case bytes.HasPrefix(data, []byte{0xFF, 0xFE}):
		data = fromUTF16(data[2:], binary.LittleEndian)
	case bytes.HasPrefix(data, []byte{0xFE, 0xFF}):
		data = fromUTF16(data[2:], binary.BigEndian)
	}
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return nil, LineAt(data, i) + 1, "has NUL bytes: save it as UTF-8 text"
	}
	if !utf8.Valid(data) {
		return nil, LineAt(data, invalidAt(data)) + 1, "is not UTF-8"
	}
	return bareCR(data), 0, ""
}

// bareCR replaces carriage returns that end a line by line feeds.
func bareCR(data []byte) []byte {
	for i := 0; i < len(data); i++ {
		next := bytes.IndexByte(data[i:], '\r')
		if next < 0 {
			break
		}
		if i += next; i+1 == len(data) || data[i+1] != '\n' {
			data[i] = '\n'
		}
	}
	return data
}

func fromUTF16(data []byte, order binary.ByteOrder) []byte {
	out := make([]byte, 0, len(data)/2+len(data)/8)
	for len(data) >= 2 {
		r, n := rune(order.Uint16(data)), 2
		if utf16.IsSurrogate(r) && len(data) >= 4 {
			if c := utf16.DecodeRune(r, rune(order.Uint16(data[2:]))); c != utf8.RuneError {
				r, n = c, 4
			}
		}
		out, data = utf8.AppendRune(out, r), data[n:]
	}
	return out
}

func invalidAt(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(data)
}

// LineAt returns the line of an offset, from 0.
func LineAt(data []byte, offset int) int {
	return bytes.Count(data[:min(offset, len(data))], []byte("\n"))
}

// NextLine returns the offset of the line after an offset.
func NextLine(text []byte, pos int) int {
	if i := bytes.IndexByte(text[pos:], '\n'); i >= 0 {
		return pos + i + 1
	}
	return len(text)
}
