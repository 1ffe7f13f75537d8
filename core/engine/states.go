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
	// recheck requests one check of all Services: the data plane is another one, with
	// other gaps.
	recheck bool
	stale   []model.ServiceName // whose inputs have or have no problem any more
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

// failures are what is not programmed after a sync, by port and by Service.
type failures struct {
	ports map[model.PortID]error
	// unknown is set after an error of no single port: nothing is known
	// then of the ports that are not listed.
	unknown bool

	services map[model.ServiceName]error // each with one of the errors of its ports
	failed   map[model.ServiceName]error // those that fail for another reason than lack of time
}

func newFailures(ports map[model.PortID]error, unknown bool) failures {
	f := failures{ports: ports, unknown: unknown}
	if len(ports) == 0 {
		return f
	}
	f.services = map[model.ServiceName]error{}
	for id, err := range ports {
		if old := f.services[id.Service]; old == nil || errors.Is(old, ledger.ErrDeferred) {
			f.services[id.Service] = err
		}
	}
	delete(f.services, model.ServiceName{})
	f.failed = maps.Clone(f.services)
	maps.DeleteFunc(f.failed, func(_ model.ServiceName, err error) bool { return errors.Is(err, ledger.ErrDeferred) })
	return f
}

// deferred counts the Services that a later sync programs.
func (f failures) deferred() int { return len(f.services) - len(f.failed) }
