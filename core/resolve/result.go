// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Result is what policy makes of one Service.
type Result struct {
	Ports    []*model.Port
	Problems []model.Problem // at most model.MaxProblems
	More     int             // problems that there are beside them

	used  seen
	ids   map[model.PortID]struct{} // of Ports, once they are many
	local map[netip.Addr]struct{}   // ready endpoints on this node, in the family in work
	index sliceIndex

	hashed []*model.Pool // that have tables (model.Maglev), no two the same
}

// first reports whether there is no port of this id yet. It is called once for each
// that is added.
func (r *Result) first(id model.PortID) bool {
	const few = 16 // not worth a map
	if len(r.Ports) < few {
		return !slices.ContainsFunc(r.Ports, func(p *model.Port) bool { return p.ID == id })
	}
	if r.ids == nil {
		r.ids = map[model.PortID]struct{}{}
		for _, p := range r.Ports {
			r.ids[p.ID] = struct{}{}
		}
	}
	_, again := r.ids[id]
	r.ids[id] = struct{}{}
	return !again
}

// Problem notes a problem of a Service, once. Beyond those that are reported they
// are only counted: there may be one for each endpoint of each port.
func (r *Result) Problem(svc *model.Service, why model.Reason, format string, args ...any) {
	r.Note(func() model.Problem {
		return model.Problem{Object: "Service " + svc.Name.String(), Where: svc.Where, Why: why, Detail: fmt.Sprintf(format, args...)}
	})
}

// Note notes a problem, which is made only where it is reported.
func (r *Result) Note(problem func() model.Problem) {
	if len(r.Problems) == model.MaxProblems {
		r.More++
		return
	}
	if p := problem(); !slices.Contains(r.Problems, p) {
		r.Problems = append(r.Problems, p)
	}
}
