// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bufio"
	"encoding/json"
	"io"
)

// Write writes a snapshot, without having all of its text in memory.
func Write(w io.Writer, f *File) error {
	b := bufio.NewWriterSize(w, 64<<10)
	out := lines{encoder: json.NewEncoder(b)}
	out.put(f.Header)
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
	if out.err != nil {
		return out.err
	}
	return b.Flush()
}

// lines writes values, each on a line of its own, until one fails.
type lines struct {
	encoder *json.Encoder
	count   int
	err     error
}

func (l *lines) put(v any) {
	if l.err == nil {
		l.err = l.encoder.Encode(v)
		l.count++
	}
}
