// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"maps"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// StateChange is the new state of one Service.
type StateChange struct {
	Service model.ServiceName
	State   model.State
	Was     model.State
	Gone    bool   // there is no such Service any more
	Detail  string // the first reason for not being Programmed
}

// serviceStates remembers the Services that are not Programmed: mostly few.
type serviceStates struct {
	bad   map[model.ServiceName]model.State
	count [model.States]int // of bad
	// recheck asks for a look at all Services, once: the data plane is another, with
	// other gaps.
	recheck bool
}

// set enters a state and reports whether it differs from the one before.
func (s *serviceStates) set(now StateChange) (StateChange, bool) {
	was, bad := s.bad[now.Service]
	now.Was = was // Programmed is the zero value
	if now.State == model.Programmed {
		if !bad {
			return now, false
		}
		delete(s.bad, now.Service)
		s.count[was]--
		return now, true
	}
	if bad && was == now.State {
		return now, false
	}
	if s.bad == nil {
		s.bad = map[model.ServiceName]model.State{}
	}
	if bad {
		s.count[was]--
	}
	s.bad[now.Service] = now.State
	s.count[now.State]++
	return now, true
}

// counts returns how many of total Services are in each state. One that is gone
// but cannot be removed still counts as failing.
func (s *serviceStates) counts(total int) (all [model.States]int) {
	all = s.count
	all[model.Programmed] = max(0, total-s.count[model.Partial]-s.count[model.Failing])
	return all
}

// failures are the ports that the data plane rejects, as after a sync. Unknown is
// set after an error that no single port stands for: nothing is known then of the
// ports that are not listed.
type failures struct {
	ports   map[model.PortID]error
	unknown bool
}

// services names the Services with ports that fail, each with one of the errors.
func (f failures) services() map[model.ServiceName]error {
	if len(f.ports) == 0 {
		return nil
	}
	names := map[model.ServiceName]error{}
	for id, err := range f.ports {
		if old := names[id.Service]; old == nil || errors.Is(old, ledger.ErrDeferred) {
			names[id.Service] = err
		}
	}
	delete(names, model.ServiceName{})
	return names
}

// rejected names those that fail for another reason than lack of time.
func (f failures) rejected() map[model.ServiceName]error {
	names := f.services()
	maps.DeleteFunc(names, func(_ model.ServiceName, err error) bool { return errors.Is(err, ledger.ErrDeferred) })
	return names
}

// deferred counts the Services that a later sync programs.
func (f failures) deferred() int { return len(f.services()) - len(f.rejected()) }
