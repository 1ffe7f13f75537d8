// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// Explain is the query of tandem explain.
func Explain() Query[oracle.Question, status.Explanation] {
	return Query[oracle.Question, status.Explanation]{Name: "explain", answer: explain}
}

func explain(ctx context.Context, p *Proxy, q oracle.Question) (status.Explanation, error) {
	s, err := p.subject(ctx, func(t *track.Tracker) []track.Service { return concerned(t, q) })
	if err != nil {
		return status.Explanation{}, err
	}
	return status.Explain(s, q)
}

// subject is the running proxy as questions about packets are asked of it: with the
// Services that the answers depend on.
func (p *Proxy) subject(ctx context.Context, pick func(*track.Tracker) []track.Service) (status.Subject, error) {
	s, err := p.snapshotFor(ctx, pick)
	if err != nil {
		return status.Subject{}, err
	}
	track.SortServices(s.Services)
	plane := p.engine.Current()
	return status.Subject{
		Mode: string(plane.Mode.Name), Host: s.Host, Services: s.Services, Gaps: s.Backend.Gaps,
		Failures: s.Backend.Failures, Implementation: plane.Implementation,
	}, nil
}

// concerned returns the Services that an answer depends on: all only where a sender is
// looked for among all endpoints.
func concerned(t *track.Tracker, q oracle.Question) []track.Service {
	host := t.Host()
	if host == nil || q.NeedsEndpoints(host) {
		return t.Unsorted()
	}
	var named []track.Service
	if n, ok := q.Service(); ok {
		named = t.Named(n)
	}
	var ports []*model.Port
	for _, s := range named {
		ports = append(ports, s.Ports...)
	}
	packet, err := q.Packet(host, ports)
	if err != nil {
		return named // the same error without the others
	}
	all := t.Concerned(packet.Proto, packet.Dst)
	for _, s := range named {
		if !slices.ContainsFunc(all, func(o track.Service) bool { return o.Object == s.Object }) {
			all = append(all, s)
		}
	}
	return all
}
