// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"strings"
	"testing"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func addrs(all ...string) (as []netip.Addr) {
	for _, s := range all {
		as = append(as, addr(s))
	}
	return as
}

func plan() Plan {
	return Plan{
		Node: addrs("192.0.2.1", "2001:db8::1"),
		Pods: []Pod{
			{Place: "client", Interface: "pod0", Addrs: addrs("10.244.1.10", "fd00:10:244:1::10")},
			{Place: "a", Interface: "pod1", Addrs: addrs("10.244.1.2")},
			{Place: "a6", Interface: "pod2", Addrs: addrs("fd00:10:244:1::2")},
		},
		Outside: addrs("192.0.2.100", "198.51.100.7", "2001:db8::100"),
		Others:  addrs("10.244.2.2", "192.0.2.2", "fd00:10:244:2::2", "2001:db8::2"),
	}
}

func TestPlans(t *testing.T) {
	if err := plan().check(); err != nil {
		t.Error(err)
	}
	if place, ok := plan().PlaceOf(addr("fd00:10:244:1::2")); place != "a6" || !ok {
		t.Errorf("fd00:10:244:1::2 is in %q", place)
	}
	for want, change := range map[string]func(*Plan){
		"is both in outside and in others": func(p *Plan) { p.Others = append(p.Others, addr("192.0.2.100")) },
		"cannot be an address":             func(p *Plan) { p.Node = append(p.Node, addr("127.0.0.1")) },
		"cannot be the name":               func(p *Plan) { p.Pods[0].Interface = uplink },
		"the place is taken":               func(p *Plan) { p.Pods[1].Place = Outside },
	} {
		p := plan()
		change(&p)
		if err := p.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

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
