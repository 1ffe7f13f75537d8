// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"fmt"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
)

// Frontends beyond the limit are counted: none is left out in silence.
func TestFrontendsBeyondTheLimitAreCounted(t *testing.T) {
	var services []question.ServiceDetail
	for i := range mostExisting + 3 {
		s := question.ServiceDetail{Service: question.Service{Name: fmt.Sprintf("default/s%d", i)}}
		for _, proto := range []string{"tcp", "udp"} {
			s.Frontends = append(s.Frontends, question.FrontendDetail{Frontend: question.Frontend{Proto: proto, Address: "10.96.0.10:80"}})
		}
		services = append(services, s)
	}
	rows, omitted := existingRows(services, func(name string) bool { return name != "default/s0" })
	if len(rows) != mostExisting || omitted != 2 {
		t.Errorf("%d are tested, %d omitted", len(rows), omitted)
	}
}

// What the mode cannot do is a gap, also where it hides clients besides. A problem of the Service's inputs is none:
// a connection that fails then differs from what is explained.
func TestGaps(t *testing.T) {
	unsupported := func(detail string) question.Problem {
		return question.Problem{Reason: model.WhyUnsupported.String(), Detail: detail}
	}
	hidden, ranges := unsupported("hides clients"), unsupported("no source ranges")
	invalid := question.Problem{Reason: model.WhyBadAddress.String(), Detail: "no address"}
	for _, tt := range []struct {
		hides    bool
		problems []question.Problem
		want     string
	}{
		{false, nil, ""},
		{true, []question.Problem{hidden}, ""},
		{false, []question.Problem{ranges}, ranges.Detail},
		{true, []question.Problem{ranges, hidden}, ranges.Detail},
		{false, []question.Problem{invalid}, ""},
		{true, []question.Problem{invalid, hidden}, ""},
		{false, []question.Problem{invalid, ranges}, ranges.Detail},
	} {
		if got := gap(&question.Explanation{HidesClients: tt.hides, Problems: tt.problems}); got != tt.want {
			t.Errorf("hides clients %t, problems %v: %q, want %q", tt.hides, tt.problems, got, tt.want)
		}
	}
}
