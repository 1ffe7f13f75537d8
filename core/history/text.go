// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-proxy/tandem/core/printable"
)

// Write prints a history for people, one line a change. What users wrote stays on
// its line and drives no terminal.
func (d Document) Write(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "TIME\tCHANGE\tOBJECT\tVERSION\tAGE\tQUEUE\tRESOLVE\tCOMPILE\tWRITE\tWROTE")
	for i := range d.Entries {
		e := &d.Entries[i]
		fmt.Fprintf(t, "%s\t%s %s\t%s\t%s\t%s\t%s\t%s\n", e.At.Format("15:04:05.000"), e.Kind, e.Verb,
			printable.Text(cmp.Or(e.subject(), "-")), e.version(), Short(e.Age), strings.Join(e.stages(), "\t"), e.wrote())
	}
	t.Flush()
	for i := range d.Entries {
		if s := d.Entries[i].Sync; s != nil && s.Err != "" {
			fmt.Fprintf(&b, "! sync %d: %s\n", s.Number, printable.Text(s.Err))
		}
	}
	fmt.Fprintf(&b, "%d shown of %d since the start; the last %d are kept\n", len(d.Entries), d.Total, Most)
	_, err := io.WriteString(w, printable.Lines(b.String()))
	return err
}

// subject names the object, and how many there are of kinds that are about many.
func (e *Entry) subject() string {
	switch {
	case e.Count > 0 && e.Detail != "":
		return fmt.Sprintf("%d (%s)", e.Count, e.Detail)
	case e.Count > 0:
		return fmt.Sprintf("%d objects", e.Count)
	case e.Detail != "":
		return strings.TrimSpace(e.Object + " (" + e.Detail + ")")
	}
	return e.Object
}

func (e *Entry) version() string {
	if e.Version == 0 {
		return "-"
	}
	return fmt.Sprint(e.Version)
}

func (e *Entry) stages() []string {
	all := make([]string, Stages)
	for s := range Stages {
		all[s] = "-"
		if e.Sync != nil {
			all[s] = Short(e.Sync.Stages[s.String()])
		}
	}
	return all
}

// wrote says what the sync of a change did, and with how many others.
func (e *Entry) wrote() string {
	text := e.Sync.Wrote()
	if e.Sync != nil && e.Sync.Changes > 1 {
		text += fmt.Sprintf(" (with %d others)", e.Sync.Changes-1)
	}
	return text
}

// Short is a duration with about three digits; "-" when it is unknown.
func Short(s Seconds) string {
	d := s.Duration()
	switch {
	case d <= 0:
		return "-"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
