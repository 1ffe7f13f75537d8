// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/status"
)

// The bounds of a snapshot that is read: it is untrusted input.
const (
	maxBytes = 1 << 30
	maxLine  = 64 << 20 // a Service with 30,000 entries needs some 3 MB
	maxLines = 4_000_000

	// Objects are made of what has so many bytes on average: an empty one, of three bytes, may
	// take hundreds in memory. What is written has more, since what is zero is left out.
	minObject = 16
	minLine   = 4 << 10 // from which that counts
)

// Read reads a snapshot. The error names the line.
func Read(r io.Reader) (*File, error) {
	limited := &io.LimitedReader{R: r, N: maxBytes + 1}
	in := bufio.NewScanner(limited)
	in.Buffer(nil, maxLine)
	f := &File{}
	n, ended := 0, false
	for in.Scan() {
		if n++; n > maxLines {
			return nil, fmt.Errorf("snapshot: more than %d lines", maxLines)
		}
		var err error
		switch {
		case ended:
			err = errors.New("data after the end")
		case n == 1:
			err = f.header(in.Bytes())
		default:
			ended, err = f.line(in.Bytes(), n)
		}
		if err != nil {
			return nil, fmt.Errorf("snapshot, line %d: %w", n, err)
		}
	}
	switch {
	case in.Err() != nil:
		return nil, fmt.Errorf("snapshot, line %d: %w", n+1, in.Err())
	case limited.N <= 0:
		return nil, fmt.Errorf("snapshot: more than %d MiB", maxBytes>>20)
	case !ended:
		return nil, errors.New("snapshot: truncated: the end record is missing")
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return f, nil
}

// header reads the first line.
func (f *File) header(text []byte) error {
	var version struct {
		Format *int `json:"tandemSnapshot"`
	}
	if err := json.Unmarshal(text, &version); err != nil || version.Format == nil {
		return errors.New("not a snapshot of tandem")
	}
	if *version.Format != Format {
		return fmt.Errorf("format %d: this tandem reads format %d; use the one that made it", *version.Format, Format)
	}
	return strict(text, &f.Header)
}

// strict decodes one value, and nothing but what it has fields for.
func strict(text []byte, v any) error {
	if len(text) > minLine && objects(text) > len(text)/minObject {
		return errors.New("too many empty values")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if strings.Contains(err.Error(), "unknown field") {
			err = fmt.Errorf("%w: read it with the tandem that made it", err)
		}
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}

// objects counts the objects in a text of JSON, and the entries of lists that are null, which
// make one, too.
func objects(text []byte) (n int) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && (c == '{' || c == 'n'):
			n++
		}
	}
	return n
}

// line reads the line of a number, and reports whether it is the end.
func (f *File) line(text []byte, number int) (ended bool, err error) {
	var l line
	if err := strict(text, &l); err != nil {
		return false, err
	}
	switch {
	case l.Service != nil:
		f.Services = append(f.Services, l.Service)
	case l.Slice != nil:
		f.Slices = append(f.Slices, l.Slice)
	case l.CIDR != nil:
		f.CIDRs = append(f.CIDRs, l.CIDR)
	case l.Route != nil:
		f.Routes = append(f.Routes, l.Route)
	case l.Grant != nil:
		f.Grants = append(f.Grants, l.Grant)
	case l.Slot != nil:
		f.Slots = append(f.Slots, *l.Slot)
	case l.Ready != nil:
		f.Ready = append(f.Ready, *l.Ready)
	case l.Drift != nil:
		f.Drift = *l.Drift
	case l.Status != nil:
		f.Status, f.Status.Services = *l.Status, []status.Service{}
	case l.Serves != nil:
		f.Status.Services = append(f.Status.Services, *l.Serves)
	case l.Top != nil:
		f.Top = l.Top
	case l.History != nil:
		f.History, f.History.Entries = *l.History, []history.Entry{}
	case l.Change != nil:
		f.History.Entries = append(f.History.Entries, *l.Change)
	case l.Observed != nil:
		f.Observed = append(f.Observed, *l.Observed)
	case l.Check != nil:
		f.Checks = append(f.Checks, *l.Check)
	case l.End != nil && l.End.Lines == number-1:
		return true, nil
	case l.End != nil:
		return false, fmt.Errorf("the end record counts %d lines, but there are %d", l.End.Lines, number-1)
	default:
		return false, errors.New("an empty line")
	}
	return false, nil
}
