// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"encoding/json"
	"io"
	"iter"
	"runtime"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Lists are the longest lists of a File that is only written: they are made meanwhile.
type Lists struct {
	Services iter.Seq[*status.Service]
	History  iter.Seq[*history.Entry]
}

// Write writes a snapshot, without having all of its text in memory.
func Write(w io.Writer, f *File) error {
	return f.Write(w, Lists{wire.ListOf(f.Status.Services).Each, wire.ListOf(f.History.Entries).Each})
}

// Write writes a snapshot whose Status and History have what is in lists.
func (f *File) Write(w io.Writer, lists Lists) error {
	out := newLines(w)
	out.header(&f.Header)
	for _, s := range f.Services {
		out.put(s)
	}
	for _, s := range f.Slices {
		out.put(s)
	}
	for _, c := range f.CIDRs {
		out.put(c)
	}
	for _, r := range f.Routes {
		out.put(r)
	}
	for _, g := range f.Grants {
		out.put(g)
	}
	for i := range f.Slots {
		out.put(&f.Slots[i])
	}
	for i := range f.Ready {
		out.put(&f.Ready[i])
	}
	out.put(&f.Drift)
	head := f.Status
	head.Services = nil
	out.put(&head)
	for s := range lists.Services {
		out.put(s)
	}
	if f.Top != nil {
		out.put(f.Top)
	}
	past := f.History
	past.Entries = nil
	out.put(&past)
	for e := range lists.History {
		out.put(e)
	}
	for i := range f.Observed {
		out.put(&f.Observed[i])
	}
	for i := range f.Checks {
		out.put(&f.Checks[i])
	}
	out.put(&end{Lines: out.count})
	return out.flush()
}

// lines writes values, each on a line of its own, until one fails.
type lines struct {
	to      io.Writer
	encoder encoder
	buffer  []byte
	count   int
	err     error
}

// writeLength is how many bytes are written at once, or a line more.
const writeLength = 64 << 10

func newLines(w io.Writer) *lines {
	return &lines{to: w, encoder: newEncoder(), buffer: make([]byte, 0, writeLength+4<<10)}
}

// header writes the first line: a configuration states what is zero, too.
func (l *lines) header(h *Header) {
	var text []byte
	text, l.err = json.Marshal(h)
	l.buffer = append(append(l.buffer, text...), '\n')
	l.count++
}

// put writes the line with a value, which is a pointer of one of line's fields.
func (l *lines) put(v any) {
	if l.err != nil {
		return
	}
	l.buffer = append(l.encoder.line(l.buffer, v), '\n')
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
	runtime.Gosched() // a change may wait for this processor: see engine.Snapshot.Each
	return err
}
