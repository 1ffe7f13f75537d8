// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"

	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// Traced is a Proxy that can be asked what its data plane does with packets.
type Traced interface {
	// Trace asks tandem trace for each row.
	Trace(ctx context.Context, rows []conformance.Packet) ([]question.Trace, error)
}

// trace compares tandem trace of each row with the outcome of the real packets.
func (r *run) trace(ctx context.Context, step conformance.Step, verdicts []verdict) error {
	proxy, ok := r.proxy.(Traced)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	traces, err := proxy.Trace(ctx, step.Packets)
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	for i, t := range traces {
		row := step.Packets[i]
		r.report.Traces++
		if wrong := untrue(t, row, verdicts[i]); wrong != "" {
			r.report.fail("%s:%d: %s -> %s (%s): trace: %s, installed %s %v, differences %+v: %s", r.scenario.File, row.Line, row, row.Expect,
				step.Title, t.Verdict, t.Installed, t.Reaches, t.Differences, wrong)
		}
	}
	return nil
}

// untrue returns how a trace contradicts the real packets of its row.
func untrue(t question.Trace, row conformance.Packet, v verdict) string {
	same := t.Installed == row.Expect.Fate.String() && len(t.Reaches) == len(row.Expect.Endpoints)
	for i := 0; same && i < len(t.Reaches); i++ {
		e := row.Expect.Endpoints[i]
		same = t.Reaches[i].Addr == e.Addr && (t.Reaches[i].SNAT == e.SNAT || t.Verdict == question.ByGap)
	}
	switch {
	case !t.OK():
		return "the rules are unchanged"
	case v.skip != "" || v.err != nil:
		return "" // there was no real packet, or one that the mode declares to be wrong
	case v.wrong == "" && !same && t.Verdict != question.ByGap: // what passes by a gap may look right: a machine rejects it, or nobody answers
		return "the real packet did what the table says"
	case v.wrong != "" && same:
		return "the real packet did not: " + v.wrong
	}
	return ""
}
