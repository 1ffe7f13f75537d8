// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"

	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

func (p *tandem) Trace(ctx context.Context, rows []conformance.Packet) (all []question.Trace, err error) {
	s, err := p.proxy.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	scenario := conformance.Scenario{Host: p.host}
	for _, row := range rows {
		packet := scenario.Oracle(s.Host, row)
		q := oracle.Question{From: packet.Src.String(), To: packet.Dst.String() + "/" + packet.Proto.String()}
		if packet.Iface != "" {
			q.From += "%" + packet.Iface
		}
		t, err := question.TracePacket().Of(ctx, p.proxy.Known, q)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row, err)
		}
		all = append(all, t)
	}
	return all, nil
}

func (r *remote) Trace(_ context.Context, rows []conformance.Packet) ([]question.Trace, error) {
	a, err := r.call(request{Rows: rows})
	return a.Traces, err
}
