// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/model"
)

// Running returns the parts of a status that doctor's checks need.
func (d *Document) Running() *diagnosis.Running {
	r := &diagnosis.Running{Healthy: d.Healthy, Reasons: d.Reasons, Mode: d.Mode, Drift: d.Drift, Offload: d.Offload, Inputs: map[string]time.Duration{}}
	for _, in := range d.Inputs {
		r.Inputs[in.Name] = time.Duration(in.Age * float64(time.Second))
	}
	for _, p := range d.Problems {
		if p.Reason == model.WhyDegraded.String() {
			r.Degraded = append(r.Degraded, p.Detail)
		}
	}
	for _, s := range d.Services {
		switch s.State {
		case model.Failing.String():
			r.Failing = append(r.Failing, s.Name)
		case model.Partial.String():
			r.Partial++
		case Pending:
			r.Pending++
		}
		for _, f := range s.Frontends {
			r.IPv6 = r.IPv6 || strings.HasPrefix(f.Address, "[")
			if port, ok := nodePort(f); ok {
				r.NodePorts = append(r.NodePorts, port)
			}
		}
	}
	slices.Sort(r.NodePorts)
	r.NodePorts = slices.Compact(r.NodePorts)
	return r
}

// nodePort returns the port of a frontend that is a node port of TCP.
func nodePort(f Frontend) (port uint16, ok bool) {
	rest, found := strings.CutPrefix(f.Address, "*:")
	if !found || f.Proto != model.TCP.String() {
		return 0, false
	}
	at, err := netip.ParseAddrPort("0.0.0.0:" + rest)
	return at.Port(), err == nil
}
