// SPDX-License-Identifier: Apache-2.0

package question

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
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

// Preview states what an edit would change on a node. Its JSON form is stable.
type Preview struct {
	Node     string           `json:"node"`
	Mode     string           `json:"mode"`
	Services []PreviewService `json:"services"`
	Problems []Problem        `json:"problems,omitempty"` // of the edited Services
	Unknown  string           `json:"unknown,omitempty"`  // why connections were not counted
}

// PreviewService is what it would change of one Service.
type PreviewService struct {
	Name    string          `json:"name"`
	Added   int             `json:"added"` // objects
	Changed int             `json:"changed"`
	Deleted int             `json:"deleted"`
	Objects []PreviewObject `json:"objects"`
	// Connections are those tracked to frontends that change; Moved are those of them
	// whose frontend or endpoint would be gone.
	Connections int `json:"connections"`
	Moved       int `json:"moved"`
}

// PreviewObject is one object.
type PreviewObject struct {
	Verb   string `json:"verb"` // create, replace, delete
	Object string `json:"object"`
	Old    string `json:"old,omitempty"`
	New    string `json:"new,omitempty"`
}

// PreviewOf renders the changes of a backend, by Service.
func PreviewOf(changes []dataplane.Change, deltas []model.Delta, found []model.Problem) Preview {
	p := Preview{Services: []PreviewService{}, Problems: problems(found)}
	for _, d := range deltas {
		p.service(d.ID().Service)
	}
	for _, c := range changes {
		s := p.service(c.Owner.Service)
		s.Objects = append(s.Objects, PreviewObject{c.Verb.String(), c.Object, c.Old, c.New})
		switch c.Verb {
		case ledger.Create:
			s.Added++
		case ledger.Replace:
			s.Changed++
		case ledger.Delete:
			s.Deleted++
		}
	}
	return p
}

func (p *Preview) service(n model.ServiceName) *PreviewService {
	i := slices.IndexFunc(p.Services, func(s PreviewService) bool { return s.Name == n.String() })
	if i < 0 {
		i = len(p.Services)
		p.Services = append(p.Services, PreviewService{Name: n.String(), Objects: []PreviewObject{}})
	}
	return &p.Services[i]
}

// FlowCount counts the flows that changes concern.
type FlowCount struct {
	host *model.Host
	at   map[flowKey]*flowCount
}

type flowKey struct {
	proto model.Proto
	at    netip.AddrPort
}

type flowCount struct {
	service     model.ServiceName
	keeps       flows.Set // endpoints that remain
	total, lost int
}

// CountFlows begins to count for deltas.
func CountFlows(host *model.Host, deltas []model.Delta) *FlowCount {
	c := &FlowCount{host: host, at: map[flowKey]*flowCount{}}
	for _, d := range deltas {
		if d.Old == nil {
			continue // nothing led there
		}
		for i := range d.Old.Frontends {
			at := d.Old.Frontends[i].At
			one := &flowCount{service: d.ID().Service, keeps: flows.Set{}}
			if d.New != nil {
				one.keep(d.New, at)
			}
			c.at[flowKey{d.ID().Proto, at}] = one
		}
	}
	return c
}

// keep notes the endpoints that a frontend still has.
func (f *flowCount) keep(p *model.Port, at netip.AddrPort) {
	for i := range p.Frontends {
		if p.Frontends[i].At != at {
			continue
		}
		for _, act := range p.Frontends[i].On {
			if act.Pool == nil {
				continue
			}
			for _, e := range act.Pool.Endpoints {
				f.keeps[e.Addr] = struct{}{}
			}
		}
	}
}

// See takes one flow.
func (c *FlowCount) See(f flows.Flow) {
	if !f.Translated() {
		return
	}
	one := c.at[flowKey{f.Proto, f.Dst}]
	if one == nil && slices.Contains(c.host.IPs, f.Dst.Addr()) {
		any := model.FamilyOf(f.Dst.Addr()).Unspecified()
		one = c.at[flowKey{f.Proto, netip.AddrPortFrom(any, f.Dst.Port())}]
	}
	if one == nil {
		return
	}
	one.total++
	if _, kept := one.keeps[f.From]; !kept {
		one.lost++
	}
}

// Add puts the counts into a preview.
func (c *FlowCount) Add(p *Preview) {
	for _, one := range c.at {
		s := p.service(one.service)
		s.Connections += one.total
		s.Moved += one.lost
	}
}

// Pending reports whether the edit changes anything.
func (p Preview) Pending() bool { return len(p.Services) > 0 }

// Write prints a preview for people.
func (p Preview) Write(w io.Writer) error {
	var b strings.Builder
	total := PreviewService{}
	for _, s := range p.Services {
		fmt.Fprintf(&b, "%s: %s added, %d changed, %d deleted; %s, of which %d lose their frontend or endpoint\n",
			printable.Text(s.Name), printable.Count(s.Added, "object"), s.Changed, s.Deleted, printable.Count(s.Connections, "connection"), s.Moved)
		for i, o := range s.Objects {
			if i == shown {
				fmt.Fprintf(&b, "    and %d more (-o json)\n", len(s.Objects)-shown)
				break
			}
			fmt.Fprintf(&b, "  %s %s\n", map[string]string{"create": "+", "replace": "~", "delete": "-"}[o.Verb], printable.Text(o.Object))
		}
		total.Added, total.Changed, total.Deleted = total.Added+s.Added, total.Changed+s.Changed, total.Deleted+s.Deleted
		total.Connections, total.Moved = total.Connections+s.Connections, total.Moved+s.Moved
	}
	for _, x := range p.Problems {
		writeProblems(&b, x.Object, []Problem{x})
	}
	if p.Unknown != "" {
		fmt.Fprintf(&b, "! connections were not counted: %s\n", printable.Text(p.Unknown))
	}
	if !p.Pending() {
		fmt.Fprintf(&b, "no change on %s, mode %s\n", p.Node, p.Mode)
	} else {
		fmt.Fprintf(&b, "on %s, mode %s: %s, %s added, %d changed, %d deleted; %s, of which %d lose their frontend or endpoint\n",
			p.Node, p.Mode, printable.Count(len(p.Services), "Service"), printable.Count(total.Added, "object"), total.Changed, total.Deleted,
			printable.Count(total.Connections, "connection"), total.Moved)
	}
	_, err := io.WriteString(w, printable.Lines(b.String()))
	return err
}
