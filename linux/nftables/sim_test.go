// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// senders is one of each origin, by family.
func senders(f model.Family) map[string]oracle.Packet {
	if f == model.IPv4 {
		return map[string]oracle.Packet{
			"pod":       {Src: netip.MustParseAddr("10.244.1.10"), Iface: "veth0"},
			"endpoint":  {Src: netip.MustParseAddr("10.244.1.2"), Iface: "veth1"},
			"host":      {Src: netip.MustParseAddr("192.0.2.1")},
			"host-pod":  {Src: netip.MustParseAddr("10.244.1.1")},
			"outside":   {Src: netip.MustParseAddr("192.0.2.100"), Iface: "eth0"},
			"in ranges": {Src: netip.MustParseAddr("198.51.100.127"), Iface: "eth0"},
			"beside":    {Src: netip.MustParseAddr("198.51.100.128"), Iface: "eth0"},
		}
	}
	return map[string]oracle.Packet{
		"pod":       {Src: netip.MustParseAddr("fd00:10:244:1::10"), Iface: "veth0"},
		"endpoint":  {Src: netip.MustParseAddr("fd00:10:244:1::2"), Iface: "veth1"},
		"host":      {Src: netip.MustParseAddr("2001:db8::1")},
		"outside":   {Src: netip.MustParseAddr("2001:db8::100"), Iface: "eth0"},
		"in ranges": {Src: netip.MustParseAddr("2001:db8:1::5"), Iface: "eth0"},
	}
}

// The compiled objects do what the ports say, for every frontend, next to every
// frontend, and from everywhere: all classes, overrides, both families, affinity.
func TestSimIsOracle(t *testing.T) {
	ports := testPorts()
	for _, pods := range []model.PodMatch{testHost.Pods, {Interface: "veth0"}, {Prefix: "veth"}, {}} {
		host := *testHost
		host.Pods = pods
		sim := nft.NewSim(compile(t, &host, ports...), &host)
		for _, p := range ports {
			for _, f := range p.Frontends {
				for _, at := range around(&host, f) {
					for from, packet := range senders(model.FamilyOf(at.Addr())) {
						packet.Dst, packet.Proto = at, p.ID.Proto
						got, want := sim.Decide(packet), oracle.Decide(&host, ports, packet)
						if !got.Same(want) {
							t.Errorf("pods %+v: %s %s -> %s: got %v %v, want %v %v (%s)",
								pods, from, p.ID.Proto, at, got.Fate, got.Endpoints, want.Fate, want.Endpoints, want.Why)
						}
					}
				}
			}
		}
	}
}

// around is a frontend's address, with other ports and, for a node port, on
// several addresses.
func around(host *model.Host, f model.Frontend) (all []netip.AddrPort) {
	addrs := []netip.Addr{f.At.Addr()}
	if f.Kind == model.KindNodePort {
		addrs = nil
		for _, a := range append(host.IPs, netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("2001:db8::200"), netip.MustParseAddr("127.0.0.1")) {
			if a.Is4() == f.At.Addr().Is4() {
				addrs = append(addrs, a)
			}
		}
	}
	for _, a := range addrs {
		all = append(all, netip.AddrPortFrom(a, f.At.Port()), netip.AddrPortFrom(a, f.At.Port()+1))
	}
	return all
}

// Every combination of answers to the three origins comes out right, and takes
// no more overrides than it must.
func TestAllAnswers(t *testing.T) {
	one, two := endpoints("10.244.1.2:80", "10.244.2.2:80"), endpoints("10.244.1.2:80")
	all := []model.Action{drop, reject, balance(one, false), balance(one, true), balance(two, false), balance(two, true)}
	for _, kind := range []model.Kind{model.KindExternalIP, model.KindNodePort} {
		at := map[model.Kind]string{model.KindExternalIP: "203.0.113.1:80", model.KindNodePort: "0.0.0.0:80"}[kind]
		for _, pod := range all {
			for _, host := range all {
				for _, outside := range all {
					p := port("p", front(kind, at, on(pod, host, outside)))
					checkAnswers(t, p)
				}
			}
		}
	}
}

func checkAnswers(t *testing.T, p *model.Port) {
	t.Helper()
	objects := compile(t, testHost, p)
	sim := nft.NewSim(objects, testHost)
	to := p.Frontends[0].At
	if to.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(testHost.IPs[0], to.Port())
	}
	for from, packet := range senders(model.IPv4) {
		packet.Dst, packet.Proto = to, model.TCP
		got, want := sim.Decide(packet), oracle.Decide(testHost, []*model.Port{p}, packet)
		if !got.Same(want) {
			t.Errorf("%+v: from %s: got %v %v, want %v %v", p.Frontends[0].On, from, got.Fate, got.Endpoints, want.Fate, want.Endpoints)
		}
	}
	same := p.Frontends[0].On[0] == p.Frontends[0].On[1] && p.Frontends[0].On[1] == p.Frontends[0].On[2]
	for k := range objects {
		override := k.Kind == nft.KindElement && (k.Set == setVIPsPod || k.Set == setVIPsHost || k.Set == setNodePortsPod || k.Set == setNodePortsHost)
		if same && override {
			t.Errorf("%+v: the same for all needs no %s", p.Frontends[0].On, k)
		}
	}
}

// A third pool, too many endpoints and ranges on a node port are said, and
// nothing of them is open.
func TestGaps(t *testing.T) {
	a, b, c := endpoints("10.244.1.2:80"), endpoints("10.244.1.3:80"), endpoints("10.244.1.4:80")
	many := &model.Pool{}
	for i := range bankSize + 1 {
		addr := netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)})
		many.Endpoints = append(many.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(addr, 80)})
	}
	ranged := front(model.KindNodePort, "0.0.0.0:80", onAll(balance(a, true)))
	ranged.Restricted = true
	loopback := *testHost
	loopback.NodePorts.Loopback = [2]bool{true, true}
	for _, test := range []struct {
		host  *model.Host
		front model.Frontend
		gap   string
		fate  oracle.Fate
	}{
		{testHost, front(model.KindExternalIP, "203.0.113.1:80", on(balance(a, false), balance(b, false), balance(c, false))), "third", oracle.Drop},
		{testHost, front(model.KindExternalIP, "203.0.113.1:80", onAll(balance(many, false))), "only the first 32768", oracle.Forward},
		{testHost, ranged, "closed to all", oracle.Drop},
		{&loopback, front(model.KindNodePort, "0.0.0.0:80", onAll(balance(a, true))), "loopback", oracle.Forward},
	} {
		objects := map[nft.Key]nft.Value{}
		emit := func(k nft.Key, v nft.Value) { objects[k] = v }
		NewCompiler(Options{}).Base(test.host, emit)
		gaps := fmt.Sprint(NewCompiler(Options{}).Port(test.host, port("p", test.front), emit))
		if !strings.Contains(gaps, test.gap) {
			t.Errorf("gaps %s do not mention %q", gaps, test.gap)
		}
		packet := senders(model.IPv4)["outside"]
		packet.Proto, packet.Dst = model.TCP, test.front.At
		if test.front.Kind == model.KindNodePort {
			packet.Dst = netip.AddrPortFrom(testHost.IPs[0], 80)
		}
		if got := nft.NewSim(objects, test.host).Decide(packet); got.Fate != test.fate {
			t.Errorf("%s: %v, want %v", test.gap, got.Fate, test.fate)
		}
	}
	v4only := NewCompiler(Options{Families: []model.Family{model.IPv4}})
	gaps := v4only.Port(testHost, port("p", front(model.KindClusterIP, "[fd00::1]:80", onAll(drop))), func(k nft.Key, _ nft.Value) { t.Errorf("%s for a family that is not served", k) })
	if len(gaps) != 1 {
		t.Errorf("gaps %v for a family that is not served", gaps)
	}
}
