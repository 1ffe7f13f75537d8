// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// mostQuestions bounds the questions of one request for outcomes.
const mostQuestions = 10000

// Outcomes is the query of tandem test: what must happen to many packets, all by the state that is
// known at one moment. Explanations have no Objects, which take longer than all the rest.
func Outcomes() Query[[]oracle.Question, []status.Explanation] {
	return Query[[]oracle.Question, []status.Explanation]{Name: "outcomes", answer: outcomes}
}

func outcomes(ctx context.Context, p *Proxy, all []oracle.Question) ([]status.Explanation, error) {
	if len(all) > mostQuestions {
		return nil, errors.New("too many questions at once")
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
