// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/status"
)

// Explain is the query of tandem explain.
func Explain() Query[oracle.Question, status.Explanation] {
	return Query[oracle.Question, status.Explanation]{Name: "explain", answer: explain}
}

func explain(ctx context.Context, p *Proxy, q oracle.Question) (status.Explanation, error) {
	s, err := p.subject(ctx)
	if err != nil {
		return status.Explanation{}, err
	}
	return status.Explain(s, q)
}

// subject is the running proxy as questions about packets are asked of it.
func (p *Proxy) subject(ctx context.Context) (status.Subject, error) {
	s, err := p.snapshotFor(ctx)
	if err != nil {
		return status.Subject{}, err
	}
	plane := p.engine.Current()
	return status.Subject{
		Mode: string(plane.Mode.Name), Host: s.Host, Services: s.Services, Gaps: s.Backend.Gaps,
		Failures: s.Backend.Failures, Implementation: plane.Implementation,
	}, nil
}

// Trace is the query of tandem trace.
func Trace() Query[oracle.Question, status.Trace] {
	return Query[oracle.Question, status.Trace]{Name: "trace", Reads: true, answer: trace}
}

func trace(ctx context.Context, p *Proxy, q oracle.Question) (status.Trace, error) {
	subject, err := p.subject(ctx)
	if err != nil {
		return status.Trace{}, err
	}
	plane := p.engine.Current()
	t, _, err := status.Follow(subject, q, func(ports []*model.Port, packet oracle.Packet) (t dataplane.Trace, err error) {
		err = p.network.Do(func() error {
			t, err = plane.Trace(ctx, ports, packet)
			return err
		})
		return t, err
	})
	return t, err
}
