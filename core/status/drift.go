// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/printable"
)

// Drift states which objects others have changed. Its JSON form is stable.
type Drift struct {
	Node string    `json:"node"`
	Mode string    `json:"mode"`
	At   time.Time `json:"at"`
	// Looked means that the data plane was read back for this answer, or at ReadAt: then it
	// is certain that no other program has written since.
	Looked bool       `json:"looked"`
	ReadAt *time.Time `json:"readAt,omitempty"`
	// Service is the only one that it is about; absent for all.
	Service string `json:"service,omitempty"`

	Now    []Drifted `json:"now"`              // found by this look, or not repaired yet
	Before []Drifted `json:"before"`           // repaired, the latest first
	Total  uint64    `json:"total"`            // objects since the start
	Errors []string  `json:"errors,omitempty"` // why drift is not repaired
}

// Drifted is one object that was changed.
type Drifted struct {
	Difference
	FoundAt    time.Time  `json:"foundAt"`
	RepairedAt *time.Time `json:"repairedAt,omitempty"`
	By         []Writer   `json:"by,omitempty"`           // one of these did it, unless:
	Incomplete bool       `json:"byIncomplete,omitempty"` // another may have written, too
}

// Writer is a program that wrote to the data plane.
type Writer struct {
	Name string    `json:"name"`
	PID  int       `json:"pid"` // of the thread
	At   time.Time `json:"at"`
}

// DriftOf renders the drift in a snapshot, of one Service if it is named. What
// was found after since is reported as found now.
func DriftOf(s *engine.Snapshot, service string, since time.Time) Drift {
	d := Drift{At: time.Now(), Service: service, Now: []Drifted{}, Before: []Drifted{}, Total: s.Status.Drift}
	for _, one := range slices.Backward(s.Drifts) {
		x := drifted(one)
		switch {
		case service != "" && x.Service != service:
		case x.RepairedAt == nil || !since.IsZero() && one.Found.After(since):
			d.Now = append(d.Now, x)
			if err := s.Backend.Failures[one.Owner]; err != nil && x.RepairedAt == nil && !slices.Contains(d.Errors, err.Error()) {
				d.Errors = append(d.Errors, err.Error())
			}
		default:
			d.Before = append(d.Before, x)
		}
	}
	return d
}

func drifted(d engine.Drift) Drifted {
	x := Drifted{Difference: differenceOf(d.Difference), FoundAt: d.Found}
	if !d.Repaired.IsZero() {
		x.RepairedAt = &d.Repaired
	}
	x.Incomplete = d.By.Incomplete && len(d.By.Writers) > 0
	for _, w := range d.By.Writers {
		x.By = append(x.By, Writer(w))
	}
	return x
}

// Repaired reports whether nothing is left to repair.
func (d Drift) Repaired() bool {
	return !slices.ContainsFunc(d.Now, func(x Drifted) bool { return x.RepairedAt == nil })
}

// Write prints drift for people.
func (d Drift) Write(w io.Writer) error {
	var b strings.Builder
	of := ""
	if d.Service != "" {
		of = " of Service " + printable.Text(d.Service)
	}
	switch {
	case len(d.Now) > 0:
		fmt.Fprintf(&b, "%s of mode %s on %s not as tandem programmed, now or until just now:\n", printable.Count(len(d.Now), "object"), d.Mode, d.Node)
	case d.Looked:
		fmt.Fprintf(&b, "no drift%s: the data plane of mode %s on %s is as tandem programmed it%s\n", of, d.Mode, d.Node, d.read())
	default:
		fmt.Fprintf(&b, "no drift%s known in mode %s on %s\n", of, d.Mode, d.Node)
	}
	writeDrifted(&b, d.Now, shown)
	for _, e := range d.Errors {
		fmt.Fprintf(&b, "! cannot be repaired yet: %s\n", printable.Text(e))
	}
	if len(d.Before) > 0 {
		fmt.Fprintf(&b, "\nrepaired before, %s since the start, the latest first:\n", printable.Count(d.Total, "object"))
		writeDrifted(&b, d.Before, 5)
	}
	_, err := io.WriteString(w, printable.Lines(b.String()))
	return err
}

// read describes when the data plane was read; empty where that was just now.
func (d Drift) read() string {
	if d.ReadAt == nil || d.At.Sub(*d.ReadAt) < time.Minute {
		return ""
	}
	return fmt.Sprintf(" (read %s ago; no other program has written since)", d.At.Sub(*d.ReadAt).Round(time.Second))
}

func writeDrifted(b *strings.Builder, all []Drifted, most int) {
	for i, x := range all {
		if i == most {
			fmt.Fprintf(b, "and %d more (-o json)\n", len(all)-most)
			return
		}
		x.Write(b)
	}
}

// Write prints one object.
func (x Drifted) Write(b *strings.Builder) {
	more := ""
	if x.Service != "" {
		more = "  (Service " + printable.Text(x.Service) + ")"
	}
	x.Difference.write(b, more)
	fmt.Fprintf(b, "           found   %s%s\n", x.FoundAt.Format(time.RFC3339), x.repaired())
	if len(x.By) > 0 {
		fmt.Fprintf(b, "           by      %s\n", writers(x.By, x.Incomplete))
	}
}

func (x Drifted) repaired() string {
	if x.RepairedAt == nil {
		return ", NOT repaired"
	}
	return fmt.Sprintf(", repaired after %s", max(x.RepairedAt.Sub(x.FoundAt), time.Millisecond).Round(time.Millisecond))
}

// writers lists programs, the latest last.
func writers(all []Writer, incomplete bool) string {
	const most = 4
	var parts []string
	for _, w := range all[max(0, len(all)-most):] {
		parts = append(parts, fmt.Sprintf("%s (thread %d) at %s", printable.Text(w.Name), w.PID, w.At.Format("15:04:05")))
	}
	text := strings.Join(parts, ", ")
	if len(all) > 1 {
		text = "one of " + text
	}
	if incomplete {
		return "perhaps " + text + "; not all writers are known"
	}
	return text
}
