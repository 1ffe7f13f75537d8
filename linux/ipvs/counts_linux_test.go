// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// Each new connection counts for its frontend, also where a mark leads to it, and one to a
// node port for that; the counts survive a change of the endpoints and a restart.
func TestConnectionsAreCounted(t *testing.T) {
	s := newSite(t)
	s.open()
	nodePort := func(p *model.Port) *model.Port {
		p.Frontends = append(p.Frontends, model.Frontend{Kind: model.KindNodePort, At: netip.MustParseAddrPort("0.0.0.0:30080"), On: p.Frontends[0].On})
		return p
	}
	s.set(nodePort(web(first)))
	look := func() map[string]uint64 {
		t.Helper()
		got := map[string]uint64{}
		if err := s.net.Do(netns.Node, func() error {
			return s.driver.connections(func(c dataplane.Connections) { got[c.At.String()+"/"+c.Proto.String()] += c.New })
		}); err != nil {
			t.Fatal(err)
		}
		delete(got, "192.0.2.1:30080/tcp") // for a Service that has this address
		return got
	}
	expect := func(want map[string]uint64) { // the kernel adds its counters up every two seconds
		t.Helper()
		got := look()
		for end := time.Now().Add(time.Minute); !maps.Equal(got, want) && time.Now().Before(end); got = look() {
			time.Sleep(100 * time.Millisecond)
		}
		if !maps.Equal(got, want) {
			t.Errorf("counted %v, want %v", got, want)
		}
	}
	expect(map[string]uint64{})
	for range 3 {
		if got := s.dial(); got != first {
			t.Fatalf("it reached %s", got)
		}
	}
	at := netip.AddrPortFrom(node, 30080)
	if a, err := s.net.Dial(netns.Call{From: client, Proto: model.TCP, To: at, Timeout: 2 * time.Second}); err != nil || a.Outcome != netns.Answered {
		t.Fatalf("node port: %v %v", a, err)
	}
	counted := map[string]uint64{"10.96.0.10:80/tcp": 3, "0.0.0.0:30080/tcp": 1}
	expect(counted)
	s.set(nodePort(web(first, second)))
	expect(counted)
	s.close()
	s.open()
	s.set(nodePort(web(first, second)))
	expect(counted)
	s.dial()
	counted["10.96.0.10:80/tcp"]++
	expect(counted)

	endpoints := map[string]uint64{}
	if err := s.net.Do(netns.Node, func() error {
		return s.driver.endpoints(t.Context(), func(c dataplane.Connections) {
			if c.At == netip.MustParseAddrPort("10.96.0.10:80") {
				endpoints[c.Endpoint.Addr().String()] += c.New
			}
		})
	}); err != nil {
		t.Fatal(err)
	}
	if a, b := endpoints[first], endpoints[second]; len(endpoints) > 2 || a < 3 || a+b != 4 {
		t.Errorf("endpoints %v: %s had three connections, and one of both a fourth", endpoints, first)
	}
}

// A virtual server by mark is found by its number; an orphan, one of another masquerade bit, and
// a mark that none has are nobody's.
func TestServersByMarkAreFound(t *testing.T) {
	m := newFWMarks(bitsFor(0))
	by := Key{Kind: kindServer, Proto: model.TCP, Via: ByMarkSNAT, Dst: vip}
	if err := m.assign(by, 1); err != nil {
		t.Fatal(err)
	}
	id, _ := m.id(by)
	if k, known := m.server(id); !known || k != by {
		t.Errorf("%v is found as %v, %t", by, k, known)
	}
	plain := Key{Kind: kindServer, Proto: model.UDP, Dst: vip}
	if id, _ := m.id(plain); id.FWMark != 0 {
		t.Errorf("%v", id)
	} else if k, known := m.server(id); !known || k != plain {
		t.Errorf("%v is found as %v, %t", plain, k, known)
	}
	free := id
	free.FWMark++
	if k, known := m.server(free); known {
		t.Errorf("a mark that no server has is that of %v", k)
	}
	m.orphans([]Key{orphan(model.IPv4, free.FWMark)})
	if k, known := m.server(free); known {
		t.Errorf("an orphan is %v", k)
	}
}

// A virtual server at an address of this node is a node port's; any other is its frontend's alone.
func TestCountsOfNodePorts(t *testing.T) {
	count := func(at string) map[string]uint64 {
		got := map[string]uint64{}
		k := Key{Proto: model.TCP, Dst: netip.MustParseAddrPort(at)}
		s := countedServer{key: k, node: k.Dst.Addr() == node}
		s.count(dataplane.Connections{New: 7}, func(c dataplane.Connections) { got[c.At.String()] += c.New })
		return got
	}
	for at, want := range map[string]map[string]uint64{
		"10.96.0.10:80":   {"10.96.0.10:80": 7},
		"192.0.2.1:30080": {"192.0.2.1:30080": 7, "0.0.0.0:30080": 7},
		"0.0.0.0:30080":   {"0.0.0.0:30080": 7}, // by mark
	} {
		if got := count(at); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", at, got, want)
		}
	}
}
