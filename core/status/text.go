// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-proxy/tandem/core/printable"
)

// Write prints a status for people, 80 columns wide where names allow. Whatever
// users and servers wrote stays on its line and drives no terminal.
func (d Document) Write(w io.Writer) error {
	var b strings.Builder
	health := "healthy"
	if !d.Healthy {
		health = "NOT healthy"
	}
	fmt.Fprintf(&b, "tandem %s on %s: %s, mode %s, source %s\n", d.Version, d.Node, health, d.Mode, d.Source)
	for _, r := range d.Reasons {
		fmt.Fprintf(&b, "  because %s\n", printable.Text(r))
	}
	fmt.Fprintf(&b, "%d Services, %d objects in the data plane; since the start %d syncs, %d writes, %d objects repaired\n",
		len(d.Services), d.Objects, d.Syncs, d.Writes, d.Drift)
	d.inputs(&b)
	d.table(&b)
	for _, s := range d.Services {
		for _, p := range s.Problems {
			p.write(&b, s.Name)
		}
	}
	for _, p := range d.Problems {
		p.write(&b, p.Object)
	}
	_, err := io.WriteString(w, printable.Lines(b.String()))
	return err
}

// inputs says how up to date the inputs are, and what they add up to.
func (d Document) inputs(b *strings.Builder) {
	if d.Hash != "" {
		fmt.Fprintf(b, "desired state %s", d.Hash)
		if d.SyncedAt != nil && !d.At.IsZero() {
			fmt.Fprintf(b, ", programmed %s ago", d.At.Sub(*d.SyncedAt).Round(time.Second))
		}
		b.WriteString("\n")
	}
	for _, in := range d.Inputs {
		fmt.Fprintf(b, "%s: up to date %.1f s ago", printable.Text(in.Name), in.Age)
		if in.Version != "" {
			fmt.Fprintf(b, ", resourceVersion %s, %d objects", printable.Text(in.Version), in.Objects)
		}
		if in.Err != "" {
			fmt.Fprintf(b, ": %s", printable.Text(in.Err))
		}
		b.WriteString("\n")
	}
}

func (d Document) table(b *strings.Builder) {
	if len(d.Services) == 0 {
		return
	}
	b.WriteString("\n")
	t := tabwriter.NewWriter(b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tADDRESS\tKIND\tENDPOINTS\tSTATE\tSOURCES")
	for _, s := range d.Services {
		name, state := printable.Text(s.Name), s.State
		for _, f := range s.Frontends {
			fmt.Fprintf(t, "%s\t%s/%s\t%s\t%d %s\t%s\t%s\n", name, f.Address, f.Proto, f.Kind, f.Endpoints, f.Why, state, ShowSources(f.Sources))
			name, state = "", ""
		}
		if len(s.Frontends) == 0 {
			fmt.Fprintf(t, "%s\t-\t-\t-\t%s\t-\n", name, state)
		}
	}
	t.Flush()
	b.WriteString("\n")
}

// ShowSources says which clients are let in, for people: a long list is cut short.
func ShowSources(list []string) string {
	const shown = 4
	switch {
	case list == nil:
		return "all"
	case len(list) == 0:
		return "none"
	case len(list) > shown:
		return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ","), len(list)-shown)
	}
	return strings.Join(list, ",")
}

func (p Problem) write(b *strings.Builder, object string) {
	fmt.Fprintf(b, "! %s: %s", printable.Text(object), printable.Text(p.Detail))
	if p.Where != "" {
		fmt.Fprintf(b, " (%s)", printable.Text(p.Where))
	}
	b.WriteString("\n")
}
