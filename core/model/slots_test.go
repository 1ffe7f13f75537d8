// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

func endpoints(letters string) (es []model.Endpoint) {
	for _, l := range letters {
		es = append(es, model.Endpoint{Addr: addr(l)})
	}
	return es
}

func addr(letter rune) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(letter)}), 80)
}

func addrs(letters string) (as []netip.AddrPort) {
	for _, l := range letters {
		as = append(as, addr(l))
	}
	return as
}

func letters(es []model.Endpoint) (s string) {
	for _, e := range es {
		s += string(rune(e.Addr.Addr().As4()[3]))
	}
	return s
}

func TestReslot(t *testing.T) {
	for _, tt := range []struct{ old, set, want string }{
		{"abcd", "acde", "aecd"},
		{"abcd", "acd", "adc"},
		{"abc", "abcd", "abcd"},
		{"", "ba", "ba"},
		{"abc", "xyz", "xyz"},
		{"cba", "abc", "cba"},
		{"abcdef", "ef", "ef"},
		{"abcdef", "fa", "af"},
	} {
		es := endpoints(tt.set)
		model.Reslot(es, addrs(tt.old))
		if got := letters(es); got != tt.want {
			t.Errorf("%s after %s: got %s, want %s", tt.set, tt.old, got, tt.want)
		}
	}
}

// Reslot never loses or invents an endpoint, and differs from the old order in
// no more slots than endpoints came or went.
func TestReslotIsMinimal(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		pick := func() (s string) {
			for _, l := range "abcdefghij" {
				if rng.IntN(2) == 0 {
					s += string(l)
				}
			}
			return s
		}
		old, set := pick(), pick()
		rng.Shuffle(len(old), func(i, j int) { b := []byte(old); b[i], b[j] = b[j], b[i]; old = string(b) })
		es := endpoints(set)
		model.Reslot(es, addrs(old))
		got := letters(es)
		if a, b := slices.Sorted(slices.Values([]byte(got))), []byte(set); !slices.Equal(a, b) {
			t.Fatalf("seed %d: %s became %s", seed, set, got)
		}
		moved, stayed := 0, 0
		for i := range min(len(old), len(got)) {
			if old[i] != got[i] {
				moved++
			}
		}
		for _, l := range []byte(old) {
			if slices.Contains([]byte(set), l) {
				stayed++
			}
		}
		if most := max(len(old)-stayed, len(set)-stayed); moved > most {
			t.Fatalf("seed %d: %s after %s gives %s: %d slots differ, at most %d must", seed, set, old, got, moved, most)
		}
	}
}

func TestNamesOrderAndText(t *testing.T) {
	id := model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "a"}, Name: "http", Proto: model.TCP}
	unnamed := id
	unnamed.Name = ""
	if fmt.Sprint(id, unnamed) != "ns/a:http ns/a" {
		t.Errorf("got %s %s", id, unnamed)
	}
	later := id
	later.Family = model.IPv6
	if id.Compare(later) >= 0 || later.Compare(id) <= 0 || id.Compare(id) != 0 || unnamed.Compare(id) >= 0 {
		t.Error("ids are not ordered")
	}
}

func TestHostMatches(t *testing.T) {
	prefix := netip.MustParsePrefix
	m := model.NodePortMatch{Prefixes: []netip.Prefix{prefix("127.0.0.0/8"), prefix("192.0.2.0/24")}}
	for a, want := range map[string]bool{"192.0.2.1": true, "198.51.100.1": false, "127.0.0.1": false, "::1": false} {
		if got := m.Contains(netip.MustParseAddr(a)); got != want {
			t.Errorf("node ports on %s: %t", a, got)
		}
	}
	m.Loopback[model.IPv4] = true
	if !m.Contains(netip.MustParseAddr("127.0.0.1")) {
		t.Error("loopback was asked for")
	}
	m.LoopbackTCPOnly = true
	for proto, want := range map[model.Proto]bool{model.TCP: true, model.UDP: false, model.SCTP: false} {
		if got := m.Answers(netip.MustParseAddr("127.0.0.1"), proto); got != want {
			t.Errorf("node ports of %s on 127.0.0.1: %t", proto, got)
		}
		if !m.Answers(netip.MustParseAddr("192.0.2.1"), proto) {
			t.Errorf("node ports of %s do not answer", proto)
		}
	}
}
