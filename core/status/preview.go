// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

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
