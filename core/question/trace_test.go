// SPDX-License-Identifier: Apache-2.0

package question

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// What became of a real packet is compared in the order in which it matters: outcome,
// endpoint, source.
func TestLiveIsCompared(t *testing.T) {
	e := Explanation{Outcome: "forward", Endpoints: []oracle.Target{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), SNAT: true}, {Addr: netip.MustParseAddrPort("10.0.0.2:80")}}}
	hides, host := e, e
	host.Steps = []oracle.Step{{About: oracle.AboutOrigin, Result: model.FromHost.String()}}
	hides.HidesClients = true
	for _, tt := range []struct {
		name string
		e    Explanation
		live Live
		want string // part of the difference; empty for none
	}{
		{"masqueraded", e, Live{Client: "10.0.0.9", Outcome: "forward", Endpoint: "10.0.0.1:80", Sees: "192.0.2.1", SNAT: true}, ""},
		{"not masqueraded", e, Live{Client: "10.0.0.9", Outcome: "forward", Endpoint: "10.0.0.1:80", Sees: "10.0.0.9"}, "must be true"},
		{"masqueraded with its own address", host, Live{Client: "192.0.2.1", Outcome: "forward", Endpoint: "10.0.0.1:80", Sees: "192.0.2.1"}, ""},
		{"masqueraded where it must not be", e, Live{Client: "10.0.0.9", Outcome: "forward", Endpoint: "10.0.0.2:80", Sees: "192.0.2.1", SNAT: true}, "sees 192.0.2.1"},
		{"hidden by the mode", hides, Live{Client: "10.0.0.9", Outcome: "forward", Endpoint: "10.0.0.2:80", Sees: "192.0.2.1", SNAT: true}, ""},
		{"another endpoint", e, Live{Outcome: "forward", Endpoint: "10.0.0.3:80"}, "10.0.0.3:80 is no endpoint"},
		{"dropped", e, Live{Outcome: "drop", Path: []string{"a", "ip firewall forward: rule 3: drop"}}, "ip firewall forward"},
		{"not seen", e, Unseen(), ""},
		{"rejected as it must be", Explanation{Outcome: "reject"}, Live{Outcome: "reject"}, ""},
	} {
		tt.live.Compare(tt.e)
		if (tt.live.Difference == "") != (tt.want == "") || !strings.Contains(tt.live.Difference, tt.want) {
			t.Errorf("%s: difference %q, want %q", tt.name, tt.live.Difference, tt.want)
		}
	}
}
