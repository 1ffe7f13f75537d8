// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// found lists what At has for an address.
func found(tr *track.Tracker, a netip.Addr) (all []string) {
	for s, e := range tr.At(a) {
		all = append(all, fmt.Sprintf("%s %s %s", s.Name.Name, e.Addr, e.Node))
	}
	slices.Sort(all)
	return all
}

// Whatever has come, changed and gone, an address finds the endpoints that have it, and no others.
func TestAt(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 36))
		tr := track.New()
		tr.SetHost(host("z"))
		for i := range 3 {
			tr.Set(service(fmt.Sprint("svc", i), fmt.Sprint("10.96.0.", i), 80))
		}
		pool := many("10.0.0.1", 12)
		pool = append(pool, many("fd00::1", 4)...)
		present := map[string]*model.Slice{}
		for range 60 {
			id := fmt.Sprint("s", rng.IntN(6))
			if rng.IntN(4) == 0 {
				tr.Delete(&model.Slice{Name: model.SliceName{Namespace: "ns", Name: id}})
				delete(present, id)
				continue
			}
			s := slice(id, fmt.Sprint("svc", rng.IntN(3)), 80)
			if old := present[id]; old != nil {
				s.Endpoints = slices.Clone(old.Endpoints)
			}
			for range rng.IntN(3) {
				if n := len(s.Endpoints); n > 0 {
					i := rng.IntN(n)
					s.Endpoints = slices.Delete(s.Endpoints, i, i+1)
				}
			}
			for range rng.IntN(5) { // some of them twice in one slice
				e := model.SliceEndpoint{Addr: pool[rng.IntN(len(pool))], Node: fmt.Sprint("n", rng.IntN(9))}
				s.Endpoints = slices.Insert(s.Endpoints, rng.IntN(len(s.Endpoints)+1), e)
			}
			tr.Set(s)
			present[id] = s
		}
		tr.Flush()
		resumed := track.Resume(tr.Host(), tr.Services(), &model.Objects{}, nil, time.Unix(0, 0))
		for _, a := range pool {
			var want []string
			for _, s := range present {
				for _, e := range s.Endpoints {
					if e.Addr == a {
						want = append(want, fmt.Sprintf("%s %s %s", s.Name.Name, e.Addr, e.Node))
					}
				}
			}
			slices.Sort(want)
			if got := found(tr, a); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s: %v, want %v", seed, a, got, want)
			}
			if got := found(resumed, a); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s: %v after Resume, want %v", seed, a, got, want)
			}
		}
	}
}

// RemoteAt is what failover asks about an address: who says what of it.
func TestRemoteAt(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("z"))
	for i, ns := range []string{"b", "a", "flood"} {
		s := slice(ns+"-1", ns, 80, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		s.Name.Namespace, s.Endpoints[0].Node, s.Endpoints[1].Node, s.Endpoints[2].State = ns, fmt.Sprint("there", i), "here", 0
		s.Ports = append(s.Ports, model.SlicePort{Name: "dns", Proto: model.UDP, Port: 53})
		for port := range 100 * (i / 2) {
			s.Ports = append(s.Ports, model.SlicePort{Name: fmt.Sprint(port), Proto: model.TCP, Port: uint16(9000 + port)})
		}
		tr.Set(s) // of no Service yet
	}
	want := "[{10.0.0.1:8080 there1 a/a} {10.0.0.1:8080 there0 b/b} {10.0.0.1:8080 there2 flood/flood} {10.0.0.4:8080  a/a} {10.0.0.4:8080  b/b} {10.0.0.4:8080  flood/flood}]"
	var got []track.Endpoint
	for _, a := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		got = append(got, tr.RemoteAt(netip.MustParseAddr(a))...)
	}
	got = append(got, tr.RemoteAt(netip.Addr{})...)
	if len(got) != 2*(1+1+16) {
		t.Errorf("%d endpoints, want no more than 16 of a namespace at an address", len(got))
	}
	got = slices.DeleteFunc(got, func(e track.Endpoint) bool { return e.At.Port() >= 9000 })
	if fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
