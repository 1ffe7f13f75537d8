// Package status says how Tandem is doing, in a form for people and machines:
// what it serves, what it refused and why, and whether the data plane is as it
// shall be.
package status

import (
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// Document is the status of a running Tandem. Its JSON form is stable: fields
// are added, not changed.
type Document struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Mode    string    `json:"mode"`
	Source  string    `json:"source"`
	At      time.Time `json:"at"`

	Healthy  bool       `json:"healthy"`
	Reasons  []string   `json:"reasons,omitempty"` // why not
	SyncedAt *time.Time `json:"syncedAt,omitempty"`
	Syncs    uint64     `json:"syncs"`
	Objects  int        `json:"objects"` // in the data plane
	Writes   uint64     `json:"writes"`  // objects created, replaced or deleted since the start
	Drift    uint64     `json:"drift"`   // objects repaired since the start

	Services []Service `json:"services"`
	Problems []Problem `json:"problems,omitempty"` // of the source: objects that were not understood
}

// Service is one Service.
type Service struct {
	Name     string    `json:"name"`
	State    string    `json:"state"` // Programmed, Partial, Failing
	Fronts   []Front   `json:"fronts"`
	Problems []Problem `json:"problems,omitempty"`
}

// Front is one address of a Service.
type Front struct {
	Port      string `json:"port"`
	Kind      string `json:"kind"`
	Address   string `json:"address"` // IP:port; for node ports *:port
	Proto     string `json:"protocol"`
	Endpoints int    `json:"endpoints"` // that serve clients from outside, or of the widest origin
	Why       string `json:"why"`
}

// Problem is something that was refused, skipped, cannot be done or failed.
type Problem struct {
	Object string `json:"object,omitempty"`
	Where  string `json:"where,omitempty"`
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

// The states of a Service.
const (
	Programmed = "Programmed" // everything that it asks for works
	Partial    = "Partial"    // it works, but for the problems listed
	Failing    = "Failing"    // the data plane refuses part of it; retried
)

// Facts are what a snapshot does not know.
type Facts struct{ Version, Node, Mode, Source string }

// Of renders a snapshot.
func Of(f Facts, s *engine.Snapshot) Document {
	d := Document{
		Version: f.Version, Node: f.Node, Mode: f.Mode, Source: f.Source, At: time.Now(),
		Syncs: s.Status.Syncs, Writes: s.Status.Writes, Objects: s.Backend.Objects, Drift: s.Status.Drift,
		Reasons: Unhealthy(s.Status), Services: []Service{}, Problems: problems(s.Problems),
	}
	d.Healthy = len(d.Reasons) == 0
	if err := s.Backend.Failures[model.PortID{}]; err != nil { // what belongs to no Service alone
		d.Problems = append(d.Problems, Problem{Object: "data plane", Reason: Failing, Detail: err.Error()})
	}
	if !s.Status.SyncedAt.IsZero() {
		d.SyncedAt = &s.Status.SyncedAt
	}
	for _, svc := range s.Services {
		d.Services = append(d.Services, service(svc.Object.Name, svc.Ports, problems(svc.Problems), s))
	}
	return d
}

// patience is how long a change may wait for being programmed before the whole
// proxy counts as unhealthy, as in kube-proxy (twice its sync period). A Service
// that the data plane refuses while others work is told in its own state.
const patience = time.Minute

// Unhealthy says why a running Tandem cannot be relied on; nothing when it can.
func Unhealthy(s engine.Status) (reasons []string) {
	if !s.Adopted {
		reasons = append(reasons, "the data plane has not been read back yet")
	}
	if !s.Told {
		reasons = append(reasons, "the source has not told everything yet")
	} else if !s.Synced {
		reasons = append(reasons, "nothing has been programmed yet")
	}
	if waits := time.Since(s.QueuedAt); !s.QueuedAt.IsZero() && waits > patience {
		reasons = append(reasons, fmt.Sprintf("nothing has been programmed for changes that wait since %s", waits.Round(time.Second)))
	}
	if s.Err != nil && len(reasons) > 0 {
		reasons = append(reasons, s.Err.Error())
	}
	return reasons
}

func service(name model.ServiceName, ports []*model.Port, found []Problem, s *engine.Snapshot) Service {
	out := Service{Name: name.String(), State: Programmed, Fronts: []Front{}, Problems: found}
	failing := false
	for _, p := range ports {
		for i := range p.Fronts {
			out.Fronts = append(out.Fronts, front(p, &p.Fronts[i]))
		}
		for _, g := range s.Backend.Gaps[p.ID] {
			out.Problems = append(out.Problems, Problem{Reason: model.WhyUnsupported.String(), Detail: gap(p, g)})
		}
		if err := s.Backend.Failures[p.ID]; err != nil {
			failing = true
			out.Problems = append(out.Problems, Problem{Reason: Failing, Detail: fmt.Sprintf("%s: %v", p.ID, err)})
		}
	}
	switch {
	case failing:
		out.State = Failing
	case len(out.Problems) > 0:
		out.State = Partial
	}
	return out
}

func front(p *model.Port, f *model.Front) Front {
	out := Front{Port: p.ID.Name, Kind: f.Kind.String(), Address: f.At.String(), Proto: p.ID.Proto.String()}
	if f.Kind == model.KindNodePort {
		out.Address = fmt.Sprintf("*:%d", f.At.Port())
	}
	act := f.On[model.FromOutside]
	if act.Pool != nil {
		out.Endpoints = len(act.Pool.Endpoints)
	}
	out.Why = act.Why.String()
	return out
}

func gap(p *model.Port, g model.Gap) string {
	if g.Front.IsValid() {
		return g.Front.String() + ": " + g.Detail
	}
	return p.ID.String() + ": " + g.Detail
}

func problems(ps []model.Problem) (out []Problem) {
	for _, p := range ps {
		out = append(out, Problem{Object: p.Object, Where: p.Where, Reason: p.Why.String(), Detail: p.Detail + ": " + p.Why.Text()})
	}
	return out
}
