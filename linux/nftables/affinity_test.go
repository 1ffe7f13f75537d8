// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/nft"
)

func TestAffinePickNames(t *testing.T) {
	for _, slots := range []*nft.Set{setAffinitySlots, setAffinityNodeSlots} {
		for c := asIs; c <= noSNAT; c++ {
			for _, second := range []bool{false, true} {
				for _, timeout := range []time.Duration{time.Second, 3 * time.Hour, 24 * time.Hour} {
					p := affinePick{pick{slots: slots, class: c, second: second, count: 5}, timeout}
					if got, ok := parseAffinePick(p.name()); !ok || got != p {
						t.Errorf("%q is read as %+v", p.name(), got)
					}
					if _, ok := parsePick(p.name()); ok {
						t.Errorf("%q is read as a pick chain", p.name())
					}
				}
			}
		}
	}
	for _, name := range []string{"", "affinity-5", "affinity-0-1s", "affinity-5-0s", "affinity-5-1", "affinity-known", "affinity-send-second", "affinity-5-1s-second-snat", "pick-5"} {
		if p, ok := parseAffinePick(name); ok {
			t.Errorf("%q is read as %+v", name, p)
		}
	}
}

// affineFronts is a port with a frontend of each kind; packets from outside to its
// load balancer and node port stay on this node.
func affineFronts(f model.Family, cluster, local *model.Pool) *model.Port {
	addrs := map[model.Family][]string{
		model.IPv4: {"10.96.0.1:80", "203.0.113.1:80", "203.0.113.2:80", "0.0.0.0:30080"},
		model.IPv6: {"[fd00:10:96::1]:80", "[2001:db8:cafe::1]:80", "[2001:db8:cafe::2]:80", "[::]:30080"},
	}[f]
	lb := on(balance(cluster, false), balance(cluster, true), balance(local, false))
	return withAffinity(port("p",
		front(model.KindClusterIP, addrs[0], onAll(balance(cluster, true))),
		front(model.KindExternalIP, addrs[1], onAll(balance(cluster, true))),
		front(model.KindLoadBalancer, addrs[2], lb),
		front(model.KindNodePort, addrs[3], lb)), time.Hour)
}

// A client that is remembered goes to its endpoint by every frontend of the port that
// the endpoint is behind, and to any other endpoint where it is not.
func TestRememberedClient(t *testing.T) {
	for f, addrs := range map[model.Family][3]string{
		model.IPv4: {"10.244.2.1:80", "10.244.1.2:80", "10.244.1.3:80"},
		model.IPv6: {"[fd00:10:244:2::1]:80", "[fd00:10:244:1::2]:80", "[fd00:10:244:1::3]:80"},
	} {
		port := affineFronts(f, endpoints(addrs[:]...), endpoints(addrs[1:]...))
		client := netip.MustParseAddr([...]string{model.IPv4: "192.0.2.100", model.IPv6: "2001:db8::100"}[f])
		for i, had := range addrs {
			objects := compile(t, testHost, port)
			p := portCompiler{host: testHost, port: port}
			k := nft.AddrKey(setAffinity, client)
			k.Proto = model.TCP
			k = k.WithSecond(p.identity())
			objects[k] = nft.AddressValue(netip.MustParseAddrPort(had).Addr())
			for j := range port.Frontends {
				packet := oracle.Packet{Src: client, Dst: port.Frontends[j].At, Proto: model.TCP, Iface: "eth0"}
				if port.Frontends[j].Kind == model.KindNodePort {
					packet.Dst = netip.AddrPortFrom(testHost.IPs[f], port.Frontends[j].At.Port())
				}
				want := []string{had}
				if j >= 2 && i == 0 { // it was remembered for a frontend with more endpoints
					want = addrs[1:]
				}
				var got []string
				for _, e := range nft.NewSim(objects, testHost).Decide(packet).Endpoints {
					got = append(got, e.Addr.String())
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s: a client of %s is sent to %s by %s", f, had, got, port.Frontends[j].At)
				}
			}
		}
	}
}

// Two endpoints of one address are distinguished.
func TestHandles(t *testing.T) {
	p := endpoints("10.244.1.2:8081", "10.244.1.2:8080", "10.244.1.3:8081")
	port := withAffinity(port("p", front(model.KindClusterIP, "10.96.0.1:80", onAll(balance(p, false)))), time.Hour)
	seen := map[nft.Value]bool{}
	for k, v := range compile(t, testHost, port) {
		if k.Set == setAffinitySlots && k.Kind == nft.KindElement {
			seen[v] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d handles of 3 endpoints", len(seen))
	}
}

// Which ports have one number is another question on each machine: nobody can choose an address
// whose number is a given one.
func TestNumbersAreSalted(t *testing.T) {
	other := *testHost
	other.Salt++
	port := withAffinity(port("p", front(model.KindClusterIP, "10.96.0.1:80", onAll(balance(endpoints("10.244.1.2:8080"), false)))), time.Hour)
	here, there := portCompiler{host: testHost, port: port}, portCompiler{host: &other, port: port}
	if here.identity() == there.identity() || here.tenant() == there.tenant() {
		t.Error("machines with other salts have the same numbers")
	}
	if testHost.SamePorts(&other) {
		t.Error("ports are not compiled again for another salt")
	}
}

// No two ports are known by the same, and each is by the same on all of its frontends.
func TestIdentities(t *testing.T) {
	seen := map[netip.Addr]netip.AddrPort{}
	for _, network := range []string{"10.96.0.0", "fd00:10:96::"} {
		a := netip.MustParseAddr(network)
		for range 300 {
			a = a.Next()
			for _, n := range []uint16{1, 80, 81, 443, 8080, 65535} {
				at := netip.AddrPortFrom(a, n)
				p := portCompiler{host: testHost, port: &model.Port{Frontends: []model.Frontend{{At: at}, {At: netip.MustParseAddrPort("0.0.0.0:30000")}}}}
				if other, taken := seen[p.identity()]; taken {
					t.Errorf("%s and %s are both known by %s", at, other, p.identity())
				}
				seen[p.identity()] = at
			}
		}
	}
}

// The number of chains and sets depends on the sizes of pools and on timeouts, not
// on the number of Services.
func TestAffinityHasNoChainsOfItsOwn(t *testing.T) {
	count := func(services int) (chains, sets int) {
		var ports []*model.Port
		for i := range services {
			at := fmt.Sprintf("10.96.%d.%d:80", i>>8, i&255)
			ports = append(ports, withAffinity(port(fmt.Sprint("s", i), front(model.KindClusterIP, at, onAll(balance(endpoints("10.244.1.2:80", "10.244.2.2:80"), false)))), time.Hour))
		}
		for k := range compile(t, testHost, ports...) {
			switch k.Kind {
			case nft.KindChain:
				chains++
			case nft.KindSet:
				sets++
			}
		}
		return chains, sets
	}
	c1, s1 := count(1)
	if c, s := count(1000); c != c1 || s != s1 {
		t.Errorf("%d chains and %d sets for 1,000 Services, %d and %d for one", c, s, c1, s1)
	}
}
