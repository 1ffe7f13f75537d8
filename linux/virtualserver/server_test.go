// SPDX-License-Identifier: Apache-2.0

package virtualserver

import (
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

var (
	web = netip.MustParseAddrPort("10.96.0.10:80")
	six = netip.MustParseAddrPort("[fd00::10]:53")
	pod = netip.MustParseAddrPort("10.244.1.2:8080")
)

// The text is what "ipvsadm -Sn" prints of the same server.
func TestText(t *testing.T) {
	for _, c := range []struct {
		id   ID
		s    Server
		to   []Destination
		want string
	}{
		{ID{Proto: model.TCP, Addr: web}, Server{Scheduler: "rr"}, []Destination{{Addr: pod, Weight: 3}}, "-A -t 10.96.0.10:80 -s rr\n-a -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 3\n"},
		{ID{Proto: model.UDP, Family: model.IPv6, Addr: six}, Server{"mh", Persistent | MHPort, 10800}, nil, "-A -u [fd00::10]:53 -s mh -p 10800 -b mh-port\n"},
		{ID{Proto: model.SCTP, Addr: web}, Server{Scheduler: "sh", Flags: Fallback}, nil, "-A --sctp-service 10.96.0.10:80 -s sh -b sh-fallback\n"},
		{ID{Proto: model.TCP, Addr: web}, Server{Scheduler: "mh", Flags: Fallback | MHPort}, nil, "-A -t 10.96.0.10:80 -s mh -b mh-fallback,mh-port\n"},
		{ID{FWMark: 8193}, Server{Scheduler: "rr"}, nil, "-A -f 8193 -s rr\n"},
		{ID{Family: model.IPv6, FWMark: 8193}, Server{Scheduler: "rr"}, nil, "-A -f 8193 -6 -s rr\n"},
	} {
		if got := Text(c.id, c.s, c.to...); got != c.want {
			t.Errorf("got\n%swant\n%s", got, c.want)
		}
	}
}

// The kernel looks for a server by mark first (ip_vs_service_find), of the
// packet's family.
func TestFind(t *testing.T) {
	byAddr, byMark := ID{Proto: model.TCP, Addr: web}, ID{FWMark: 7}
	table := Table{}
	table.Add(byAddr, pod)
	table.Add(byMark)
	table.Add(ID{Family: model.IPv6, FWMark: 8})
	for mark, want := range map[uint32]ID{0: byAddr, 7: byMark, 8: byAddr} {
		if got, ok := table.Find(model.TCP, web, mark); !ok || got != want {
			t.Errorf("mark %d: %v %v, want %v", mark, got, ok, want)
		}
	}
	if got, ok := table.Find(model.UDP, web, 0); ok {
		t.Errorf("another protocol finds %v", got)
	}
}
