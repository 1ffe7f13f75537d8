package engine

import (
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// tell reports what is newly wrong with the ports that changed.
func (e *Engine) tell(deltas []model.Delta) {
	for _, p := range e.tracker.NewProblems() {
		e.problem(p)
	}
	told := map[model.ServiceName]int{} // gaps
	for _, d := range deltas {
		id := d.ID()
		gaps := e.Backend.Gaps(id)
		if slices.Equal(gaps, e.said[id]) {
			continue
		}
		delete(e.said, id)
		if len(gaps) > 0 {
			e.said[id] = gaps
		}
		e.tellGaps(id, gaps, told)
	}
	for name, n := range told {
		if more := n - model.MaxProblems; more > 0 {
			e.problem(model.Problem{Object: "Service " + name.String(), Why: model.WhyUnsupported, Detail: fmt.Sprintf("%d more problems of its ports", more)})
		}
	}
}

// tellGaps reports the gaps of a port. A Service may have thousands of ports that
// lack the same, so that most of them are only counted.
func (e *Engine) tellGaps(id model.PortID, gaps []model.Gap, told map[model.ServiceName]int) {
	for _, g := range gaps {
		if g.Source {
			e.tellOfMode(g)
			continue
		}
		if told[id.Service]++; told[id.Service] > model.MaxProblems {
			continue
		}
		e.problem(model.Problem{Object: "Service " + id.Service.String(), Why: model.WhyUnsupported, Detail: id.String() + ": " + g.Detail})
	}
}

// tellOfMode reports, once, what the whole mode cannot do. It is said of the port
// that there is not.
func (e *Engine) tellOfMode(g model.Gap) {
	if said := e.said[model.PortID{}]; !slices.Contains(said, g) {
		e.said[model.PortID{}] = append(said, g)
		e.problem(model.Problem{Object: "data plane", Why: model.WhyUnsupported, Detail: g.Detail})
	}
}

// complain reports the problems that were not there before.
func (e *Engine) complain(ps, before []model.Problem) {
	known := make(map[model.Problem]bool, len(before))
	for _, p := range before {
		known[p] = true
	}
	for _, p := range ps {
		if !known[p] {
			e.problem(p)
		}
	}
}

func (e *Engine) problem(p model.Problem) {
	e.Log.Warn("refused, skipped or impossible", "object", p.Object, "reason", p.Why.String(), "detail", p.Detail, "where", p.Where)
	if e.Hooks.Problem != nil {
		e.Hooks.Problem(p)
	}
}
