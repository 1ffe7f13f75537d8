// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"testing"
)

func TestIntroductionsAreUnderstood(t *testing.T) {
	server, client := netip.MustParseAddrPort("[fd00::1]:80"), netip.MustParseAddrPort("192.0.2.1:33000")
	a, err := understand(introduce(server, client))
	if err != nil || a != (Answer{Outcome: Answered, Server: server, Client: client}) {
		t.Errorf("%+v, %v", a, err)
	}
	for _, line := range []string{"", question, "192.0.2.1:80\n", "192.0.2.1:80 you\n", "me 192.0.2.1:80\n"} {
		if a, err := understand(line); err == nil {
			t.Errorf("%q was taken for %+v", line, a)
		}
	}
}
