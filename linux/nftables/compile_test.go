// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// ported are the objects that a port adds to the base, for people.
func ported(t *testing.T, p *model.Port) (lines []string) {
	t.Helper()
	seen := map[nft.Key]bool{}
	NewCompiler(Options{}).Port(testHost, p, func(k nft.Key, v nft.Value) {
		if seen[k] {
			t.Errorf("%s is emitted twice", k)
		}
		seen[k] = true
		if k.Kind == nft.KindElement {
			lines = append(lines, k.Set.String()+" "+strings.ReplaceAll(k.Text(v), ` comment "default/p:http"`, ""))
		} else {
			lines = append(lines, k.Name())
		}
	})
	slices.Sort(lines)
	return lines
}

func TestCompile(t *testing.T) {
	cluster, local := endpoints("10.244.1.2:8080", "10.244.2.2:8080"), endpoints("10.244.1.2:8080")
	for name, test := range map[string]struct {
		front model.Frontend
		want  []string
	}{
		"cluster IP": {
			front(model.KindClusterIP, "10.96.0.1:80", on(balance(cluster, false), balance(cluster, true), balance(cluster, true))),
			[]string{
				"cluster-ips 10.96.0.1", "endpoint-ports tcp . 8080", "hairpin 10.244.1.2 . 10.244.1.2", "pick-2",
				"slots 10.96.0.1 . tcp . 80 . 0 : 10.244.1.2 . 8080", "slots 10.96.0.1 . tcp . 80 . 1 : 10.244.2.2 . 8080",
				"vips 10.96.0.1 . tcp . 80 : goto pick-2",
			},
		},
		"node port, all masqueraded": {
			front(model.KindNodePort, "0.0.0.0:30080", onAll(balance(cluster, true))),
			[]string{
				"endpoint-ports tcp . 8080", "hairpin 10.244.1.2 . 10.244.1.2", "nodepick-2-snat", "nodeports tcp . 30080 : goto nodepick-2-snat",
				"nodeslots tcp . 30080 . 0 : 10.244.1.2 . 8080", "nodeslots tcp . 30080 . 1 : 10.244.2.2 . 8080",
			},
		},
		"outside to local endpoints only": {
			front(model.KindExternalIP, "203.0.113.1:80", on(balance(cluster, false), balance(cluster, true), balance(local, false))),
			[]string{
				"endpoint-ports tcp . 8080", "hairpin 10.244.1.2 . 10.244.1.2", "pick-1-nosnat-second", "pick-2",
				"slots 203.0.113.1 . tcp . 80 . 0 : 10.244.1.2 . 8080", "slots 203.0.113.1 . tcp . 80 . 1 : 10.244.2.2 . 8080",
				"slots 203.0.113.1 . tcp . 80 . 32768 : 10.244.1.2 . 8080",
				"vips 203.0.113.1 . tcp . 80 : goto pick-1-nosnat-second",
				"vips-host 203.0.113.1 . tcp . 80 : goto pick-2", "vips-pod 203.0.113.1 . tcp . 80 : goto pick-2",
			},
		},
		"no endpoints": {
			front(model.KindExternalIP, "203.0.113.1:80", onAll(reject)),
			[]string{"vips 203.0.113.1 . tcp . 80 : goto reject-chain"},
		},
	} {
		slices.Sort(test.want)
		if got := ported(t, port("p", test.front)); !slices.Equal(got, test.want) {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(got, "\n     "), strings.Join(test.want, "\n     "))
		}
	}
}

// Replacing an endpoint changes one object, or three when the old or the new
// one is on this node; with affinity its handle and the endpoint of that, too.
func TestEndpointReplaced(t *testing.T) {
	web := func(d time.Duration, addrs ...string) map[nft.Key]nft.Value {
		p := endpoints(addrs...)
		return compile(t, testHost, withAffinity(port("p", front(model.KindClusterIP, "10.96.0.1:80", onAll(balance(p, false)))), d))
	}
	before := web(0, "10.244.2.1:80", "10.244.2.2:80", "10.244.2.3:80")
	if diffs := differences(web(0, "10.244.2.1:80", "10.244.2.9:80", "10.244.2.3:80"), before); len(diffs) != 1 {
		t.Errorf("replacing an endpoint changes %q", diffs)
	}
	if diffs := differences(web(0, "10.244.2.1:80", "10.244.1.9:80", "10.244.2.3:80"), before); len(diffs) != 2 {
		t.Errorf("replacing an endpoint by a local one changes %q", diffs)
	}
	before = web(time.Hour, "10.244.2.1:80", "10.244.2.2:80", "10.244.2.3:80")
	if diffs := differences(web(time.Hour, "10.244.2.1:80", "10.244.2.9:80", "10.244.2.3:80"), before); len(diffs) != 3 {
		t.Errorf("with affinity, replacing an endpoint changes %q", diffs)
	}
}

// The slots of installed objects are found again, for every frontend and origin.
func TestSlots(t *testing.T) {
	ports := testPorts()
	objects := compile(t, testHost, ports...)
	have := func(k nft.Key) (nft.Value, bool) { v, ok := objects[k]; return v, ok }
	c := NewCompiler(Options{})
	for _, p := range ports {
		for _, f := range p.Frontends {
			for o, act := range f.On {
				var want []netip.AddrPort
				if act.Verdict == model.Balance {
					for _, e := range act.Pool.Endpoints {
						want = append(want, e.Addr)
					}
				}
				if got := c.Slots(have, p.ID.Proto, f.At, model.Origin(o)); !slices.Equal(got, want) {
					t.Errorf("%s %s from %s: slots %v, want %v", p.ID, f.At, model.Origin(o), got, want)
				}
			}
		}
	}
	if got := c.Slots(have, model.TCP, netip.MustParseAddrPort("192.0.2.77:1"), model.FromPod); got != nil {
		t.Errorf("slots %v of a front that is not installed", got)
	}
}

// Whatever an object refers to has a lower rank.
func TestRank(t *testing.T) {
	c := NewCompiler(Options{})
	objects := compile(t, testHost, testPorts()...)
	needs := func(k, other nft.Key) {
		if _, ok := objects[other]; !ok {
			t.Errorf("%s refers to %s, which is not there", k, other)
		}
		if c.Rank(other) >= c.Rank(k) {
			t.Errorf("%s has rank %d and needs %s, which has %d", k, c.Rank(k), other, c.Rank(other))
		}
	}
	for k, v := range objects {
		switch k.Kind {
		case nft.KindElement:
			needs(k, nft.SetKey(k.Family, k.Set.Name))
			if v.Body != nil && v.Body.Verdict == nft.VerdictGoto {
				needs(k, nft.ChainKey(k.Family, v.Body.Goto))
			}
		case nft.KindChain:
			for _, r := range v.Body.Chain.Rules {
				for _, s := range r.Statements {
					switch s := s.(type) {
					case nft.Goto:
						needs(k, nft.ChainKey(k.Family, s.Chain))
					case nft.Jump:
						needs(k, nft.ChainKey(k.Family, s.Chain))
					case nft.SetAddr:
						needs(k, nft.SetKey(k.Family, s.Map.Name))
					case nft.Update:
						needs(k, nft.SetKey(k.Family, s.Set.Name))
					case nft.Over:
						needs(k, nft.SetKey(k.Family, s.Set.Name))
					}
				}
			}
		}
	}
	if len(slices.Collect(maps.Keys(objects))) < 100 {
		t.Error("too few objects to prove anything")
	}
}

// Only what is dear to make or, on old kernels, hard to delete stays a while.
func TestDeleteDelay(t *testing.T) {
	c := NewCompiler(Options{})
	for k, v := range compile(t, testHost, testPorts()...) {
		base := false
		NewCompiler(Options{}).Base(testHost, func(b nft.Key, _ nft.Value) { base = base || b == k })
		stays := !base && (k.Kind == nft.KindChain || k.Kind == nft.KindSet)
		if got := c.DeleteDelay(k) > 0; got != stays {
			t.Errorf("%s is deleted later: %t, want %t (%v)", k, got, stays, v.Body)
		}
	}
}

func TestPickNames(t *testing.T) {
	for _, slots := range []*nft.Set{setSlots, setNodeSlots} {
		for c := asIs; c <= noSNAT; c++ {
			for _, second := range []bool{false, true} {
				for _, count := range []uint32{1, 5, bankSize} {
					p := pick{slots: slots, class: c, second: second, count: count}
					if got, ok := parsePick(p.name()); !ok || got != p {
						t.Errorf("%q is read as %+v", p.name(), got)
					}
				}
			}
		}
	}
	for _, name := range []string{"", "reject-chain", "pick-", "pick-0", "pick-05", "pick-5-other", "pick-5-second-snat", "affinity-pick-5", "pick-70000"} {
		if p, ok := parsePick(name); ok {
			t.Errorf("%q is read as %+v", name, p)
		}
	}
}

// There is one Key and one Value for every endpoint of every frontend.
func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(nft.Key{}); n > 40 {
		t.Errorf("a nft.Key has %d bytes", n)
	}
	if n := unsafe.Sizeof(nft.Value{}); n > 32 {
		t.Errorf("a nft.Value has %d bytes", n)
	}
}
