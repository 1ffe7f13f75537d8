// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
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
	s, err := p.subject(ctx, func(t *track.Tracker) []*track.View { return concerned(t, q) })
	if err != nil {
		return status.Explanation{}, err
	}
	return status.Explain(s, q)
}

// subject is the running proxy as questions about packets are asked of it: with the
// Services that the answers depend on.
func (p *Proxy) subject(ctx context.Context, pick func(*track.Tracker) []*track.View) (status.Subject, error) {
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
func concerned(t *track.Tracker, q oracle.Question) []*track.View {
	host := t.Host()
	if host == nil || q.NeedsEndpoints(host) {
		return t.Unsorted()
	}
	var named []*track.View
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
		if !slices.ContainsFunc(all, func(o *track.View) bool { return o.Object == s.Object }) {
			all = append(all, s)
		}
	}
	return all
}

// mostQuestions bounds the questions of one request for outcomes.
const mostQuestions = 10000

// Outcomes is the query of tandem test: what must happen to many packets, all by the state that is
// known at one moment. Explanations have no Objects, which take longer than all the rest.
func Outcomes() Query[[]oracle.Question, []status.Explanation] {
	return Query[[]oracle.Question, []status.Explanation]{Name: "outcomes", answer: outcomes}
}

func outcomes(ctx context.Context, p *Proxy, all []oracle.Question) ([]status.Explanation, error) {
	if len(all) > mostQuestions {
		return nil, errors.New("too many questions in one request")
	}
	s, err := p.subject(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return nil, err
	}
	s.Implementation = func([]*model.Port, oracle.Packet) []dataplane.Object { return nil }
	answers := make([]status.Explanation, 0, len(all))
	for _, q := range all {
		e, err := status.Explain(s, q)
		if err != nil {
			return nil, fmt.Errorf("from %s to %s: %w", q.From, q.To, err)
		}
		answers = append(answers, e)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return answers, nil
}
