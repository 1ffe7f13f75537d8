// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"encoding/json"
	"io"
	"reflect"
)

// Write writes a snapshot, without having all of its text in memory.
func Write(w io.Writer, f *File) error {
	out := newLines(w)
	out.header(&f.Header)
	for _, s := range f.Services {
		out.put(line{Service: s})
	}
	for _, s := range f.Slices {
		out.put(line{Slice: s})
	}
	for _, c := range f.CIDRs {
		out.put(line{CIDR: c})
	}
	for _, r := range f.Routes {
		out.put(line{Route: r})
	}
	for _, g := range f.Grants {
		out.put(line{Grant: g})
	}
	for i := range f.Slots {
		out.put(line{Slot: &f.Slots[i]})
	}
	for i := range f.Ready {
		out.put(line{Ready: &f.Ready[i]})
	}
	out.put(line{Drift: &f.Drift})
	head := f.Status
	head.Services = nil
	out.put(line{Status: &head})
	for i := range f.Status.Services {
		out.put(line{Serves: &f.Status.Services[i]})
	}
	if f.Top != nil {
		out.put(line{Top: f.Top})
	}
	past := f.History
	past.Entries = nil
	out.put(line{History: &past})
	for i := range f.History.Entries {
		out.put(line{Change: &f.History.Entries[i]})
	}
	for i := range f.Observed {
		out.put(line{Observed: &f.Observed[i]})
	}
	for i := range f.Checks {
		out.put(line{Check: &f.Checks[i]})
	}
	out.put(line{End: &end{Lines: out.count}})
	return out.flush()
}

// lines writes values, each on a line of its own, until one fails.
type lines struct {
	to      io.Writer
	encoder encoder
	append  appender // of a line
	line    line     // that is written
	value   reflect.Value
	buffer  []byte
	count   int
	err     error
}

// writeLength is how many bytes are written at once, or a line more.
const writeLength = 64 << 10

func newLines(w io.Writer) *lines {
	l := &lines{to: w, encoder: encoder{types: map[reflect.Type]appender{}}, buffer: make([]byte, 0, writeLength+4<<10)}
	l.append, l.value = l.encoder.of(reflect.TypeFor[line]()), reflect.ValueOf(&l.line).Elem()
	return l
}

// header writes the first line: a configuration states what is zero, too.
func (l *lines) header(h *Header) {
	var text []byte
	text, l.err = json.Marshal(h)
	l.buffer = append(append(l.buffer, text...), '\n')
	l.count++
}

func (l *lines) put(one line) {
	if l.err != nil {
		return
	}
	l.line = one
	l.buffer = append(l.append(l.buffer, l.value), '\n')
	l.count++
	if l.err = l.encoder.err; l.err == nil && len(l.buffer) >= writeLength {
		l.err = l.flush()
	}
}

func (l *lines) flush() error {
	if l.err != nil {
		return l.err
	}
	_, err := l.to.Write(l.buffer)
	l.buffer = l.buffer[:0]
	return err
}
