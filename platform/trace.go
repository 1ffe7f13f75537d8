// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// Trace is the query of tandem trace.
func Trace() Query[oracle.Question, status.Trace] {
	return Query[oracle.Question, status.Trace]{Name: "trace", Reads: true, answer: trace}
}

func trace(ctx context.Context, p *Proxy, q oracle.Question) (status.Trace, error) {
	subject, err := p.subject(ctx, func(t *track.Tracker) []*track.View { return concerned(t, q) })
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

// Live follows a real packet of a trace through this machine: one that it sends, where
// the node itself is the client, else the next one of any sender, until ctx ends. From
// is the question's.
func Live(ctx context.Context, t status.Trace, from string) (status.Live, error) {
	return thisSystem().live(ctx, t, from)
}
