// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"fmt"
	"testing"

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
