// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
)

// Services lists Services with their frontends and, of a single one, every endpoint
// of its slices and why it is used or not. Its JSON form is stable.
type Services struct {
	Node     string          `json:"node"`
	Mode     string          `json:"mode"`
	Services []ServiceDetail `json:"services"`
	One      bool            `json:"-"`
}

// ServiceDetail is one Service.
type ServiceDetail struct {
	Service
	Frontends []FrontendDetail `json:"frontends"`
	Used      int              `json:"used"`                // endpoints that take connections, each port's
	Endpoints []EndpointDetail `json:"endpoints,omitempty"` // of a single Service
}

// FrontendDetail is a frontend, and since when it is programmed; absent for "since the
// start, or longer".
type FrontendDetail struct {
	Frontend
	Since *time.Time `json:"since,omitempty"`
}

// EndpointDetail is one endpoint of a slice for one port.
type EndpointDetail struct {
	Port       string     `json:"port"`
	Protocol   string     `json:"protocol"`
	Address    string     `json:"address"`
	Node       string     `json:"node,omitempty"`
	Slice      string     `json:"slice"`
	Conditions []string   `json:"conditions"`
	Used       bool       `json:"used"`
	Why        string     `json:"why"`
	Since      *time.Time `json:"since,omitempty"` // as for frontends; of used ones
}

// ServicesOf lists all Services of a snapshot.
func ServicesOf(s *engine.Snapshot) Services {
	out := Services{Services: []ServiceDetail{}}
	for _, svc := range s.Services {
		out.Services = append(out.Services, serviceDetail(s, svc, nil))
	}
	return out
}

// ServiceOf describes one; ok is false when there is none of the name.
func ServiceOf(s *engine.Snapshot, name model.ServiceName, since engine.Since) (out Services, ok bool) {
	svc, ok := Find(s, name)
	if !ok {
		return out, false
	}
	d := serviceDetail(s, svc, since)
	for _, u := range resolve.EndpointUses(s.Host, resolve.MarkUnanswered(svc.Slices, s.Suspects), svc.Ports) {
		e := EndpointDetail{
			Port: u.Port.Name, Protocol: u.Port.Proto.String(), Address: u.Addr.String(), Node: u.Node,
			Slice: u.Slice.Name, Conditions: conditions(u.State), Used: u.Used, Why: u.Why,
		}
		if at, known := since[engine.SinceKey{Port: u.Port, At: u.Addr}]; known && u.Used {
			e.Since = &at
		}
		d.Endpoints = append(d.Endpoints, e)
	}
	return Services{Services: []ServiceDetail{d}, One: true}, true
}

// Find returns a Service of a snapshot.
func Find(s *engine.Snapshot, name model.ServiceName) (svc track.Service, ok bool) {
	i, ok := slices.BinarySearchFunc(s.Services, name, func(svc track.Service, n model.ServiceName) int { return svc.Object.Name.Compare(n) })
	if !ok {
		return svc, false
	}
	return s.Services[i], true
}

func serviceDetail(s *engine.Snapshot, svc track.Service, since engine.Since) ServiceDetail {
	d := ServiceDetail{Service: service(svc, s), Frontends: []FrontendDetail{}}
	for _, p := range svc.Ports {
		most := 0
		for i := range p.Frontends {
			f := FrontendDetail{Frontend: frontend(p, &p.Frontends[i])}
			if at, known := since[engine.SinceKey{Port: p.ID, At: p.Frontends[i].At}]; known {
				f.Since = &at
			}
			most = max(most, f.Endpoints)
			d.Frontends = append(d.Frontends, f)
		}
		d.Used += most
	}
	d.Service.Frontends = nil
	return d
}

// conditions are the names of those that hold.
func conditions(s model.EndpointState) (names []string) {
	names = []string{}
	for _, c := range [...]struct {
		is   model.EndpointState
		name string
	}{{model.Ready, "ready"}, {model.Serving, "serving"}, {model.Terminating, "terminating"}} {
		if s.Has(c.is) {
			names = append(names, c.name)
		}
	}
	return names
}

// Write prints Services for people.
func (s Services) Write(w io.Writer) error {
	var b strings.Builder
	for i, d := range s.Services {
		if i > 0 && s.One {
			b.WriteString("\n")
		}
		if s.One {
			d.write(&b)
		}
	}
	if !s.One {
		s.table(&b)
	}
	_, err := io.WriteString(w, printable.Lines(b.String()))
	return err
}

func (s Services) table(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tADDRESSES\tENDPOINTS\tSTATE")
	for _, d := range s.Services {
		var at []string
		for _, f := range d.Frontends {
			at = append(at, f.Address+"/"+f.Proto)
		}
		if len(at) > 3 {
			at = append(at[:3], fmt.Sprintf("and %d more", len(at)-3))
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", printable.Text(d.Name), cmp.Or(strings.Join(at, ","), "-"), d.Used, d.State)
	}
	t.Flush()
}

func (d ServiceDetail) write(b *strings.Builder) {
	fmt.Fprintf(b, "%s: %s\n\n", printable.Text(d.Name), d.State)
	t := tabwriter.NewWriter(b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "ADDRESS\tKIND\tPORT\tENDPOINTS\tSINCE\tSOURCES")
	for _, f := range d.Frontends {
		fmt.Fprintf(t, "%s/%s\t%s\t%s\t%d %s\t%s\t%s\n", f.Address, f.Proto, f.Kind, cmp.Or(printable.Text(f.Port), "-"), f.Endpoints, f.Why, sinceText(f.Since), ShowSources(f.Sources))
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "ENDPOINT\tPORT\tNODE\tCONDITIONS\tUSED\tSINCE\tWHY")
	for _, e := range d.Endpoints {
		used, since := "yes", sinceText(e.Since)
		if !e.Used {
			used, since = "NO", "-"
		}
		fmt.Fprintf(t, "%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Address, e.Protocol, cmp.Or(printable.Text(e.Port), "-"), cmp.Or(printable.Text(e.Node), "-"),
			cmp.Or(strings.Join(e.Conditions, ","), "none"), used, since, printable.Text(e.Why))
	}
	t.Flush()
	writeProblems(b, d.Name, d.Problems)
}

func sinceText(at *time.Time) string {
	if at == nil {
		return "start"
	}
	return at.Format(time.RFC3339)
}
