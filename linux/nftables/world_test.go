// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// The little world of these tests, as in ci/scenarios.
var testHost = &model.Host{
	Name: "node-1",
	IPs:  []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
	Pods: model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}},
	NodePorts: model.NodePortMatch{
		Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
	},
}

func endpoints(addrs ...string) *model.Pool {
	p := &model.Pool{}
	for _, a := range addrs {
		at := netip.MustParseAddrPort(a)
		local := netip.MustParsePrefix("10.244.1.0/24").Contains(at.Addr()) || netip.MustParsePrefix("fd00:10:244:1::/64").Contains(at.Addr())
		p.Endpoints = append(p.Endpoints, model.Endpoint{Addr: at, Local: local})
	}
	return p
}

func balance(p *model.Pool, snat bool) model.Action {
	return model.Action{Verdict: model.Balance, Pool: p, SNAT: snat}
}

var (
	drop   = model.Action{Verdict: model.Drop}
	reject = model.Action{Verdict: model.Reject}
)

// on lists the actions for packets of pods, of the host and from outside.
func on(pod, host, outside model.Action) [model.Origins]model.Action {
	return [...]model.Action{pod, host, outside}
}

func onAll(a model.Action) [model.Origins]model.Action { return on(a, a, a) }

func front(kind model.Kind, at string, actions [model.Origins]model.Action) model.Frontend {
	return model.Frontend{Kind: kind, At: netip.MustParseAddrPort(at), On: actions}
}

func port(name string, fronts ...model.Frontend) *model.Port {
	return &model.Port{
		ID: model.PortID{
			Service: model.ServiceName{Namespace: "default", Name: name}, Name: "http",
			Proto: model.TCP, Family: model.FamilyOf(fronts[0].At.Addr()),
		},
		Frontends: fronts,
	}
}

func withAffinity(p *model.Port, d time.Duration) *model.Port {
	p.SessionAffinity = d
	return p
}

func compile(t testing.TB, host *model.Host, ports ...*model.Port) map[nft.Key]nft.Value {
	t.Helper()
	c := NewCompiler(Options{})
	objects := map[nft.Key]nft.Value{}
	emit := func(k nft.Key, v nft.Value) {
		if old, ok := objects[k]; ok && !c.Equal(old, v) {
			t.Errorf("%s is emitted with two values", k)
		}
		objects[k] = v
	}
	c.Base(host, emit)
	for _, p := range ports {
		c.Port(host, p, emit)
	}
	return objects
}

// testPorts use everything that there is: all classes and overrides, both
// families, source ranges, affinity, awkward names.
func testPorts() []*model.Port {
	cluster := endpoints("10.244.1.2:8080", "10.244.2.2:8080", "10.244.1.3:8080")
	local := endpoints("10.244.1.2:8080", "10.244.1.3:8080")
	cluster6 := endpoints("[fd00:10:244:1::2]:8080", "[fd00:10:244:2::2]:8080")
	local6 := endpoints("[fd00:10:244:1::2]:8080")
	restricted := front(model.KindLoadBalancer, "203.0.113.7:80", onAll(balance(cluster, true)))
	restricted.Restricted = true
	restricted.Allow = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/25"), netip.MustParsePrefix("192.0.2.100/32")}
	restricted6 := front(model.KindLoadBalancer, "[2001:db8:cafe::7]:80", onAll(balance(cluster6, true)))
	restricted6.Restricted = true
	restricted6.Allow = []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64")}
	odd := port("odd", front(model.KindClusterIP, "10.96.0.13:80", onAll(balance(cluster, false))))
	odd.ID.Service.Name = "it's \"odd\"; }\n$(id) ü"
	udp := port("dns", front(model.KindClusterIP, "10.96.0.10:80", onAll(balance(cluster, false))))
	udp.ID.Proto = model.UDP
	sctp := port("sctp", front(model.KindNodePort, "0.0.0.0:30080", onAll(balance(local, true))))
	sctp.ID.Proto = model.SCTP
	return []*model.Port{
		port("web",
			front(model.KindClusterIP, "10.96.0.10:80", on(balance(cluster, false), balance(cluster, true), balance(cluster, true))),
			front(model.KindExternalIP, "203.0.113.5:80", onAll(balance(cluster, true))),
			restricted,
			front(model.KindNodePort, "0.0.0.0:30080", onAll(balance(cluster, true)))),
		port("local",
			front(model.KindClusterIP, "10.96.0.11:80", onAll(balance(cluster, false))),
			front(model.KindLoadBalancer, "203.0.113.8:80", on(balance(cluster, false), balance(cluster, true), balance(local, false))),
			front(model.KindNodePort, "0.0.0.0:30081", on(balance(cluster, false), balance(cluster, true), balance(local, false)))),
		port("local-nowhere",
			front(model.KindLoadBalancer, "203.0.113.9:80", on(balance(cluster, false), balance(cluster, true), drop)),
			front(model.KindNodePort, "0.0.0.0:30082", on(balance(cluster, false), balance(cluster, true), drop))),
		port("empty", front(model.KindClusterIP, "10.96.0.12:80", onAll(reject)),
			front(model.KindNodePort, "0.0.0.0:30083", onAll(reject))),
		port("strange",
			front(model.KindExternalIP, "203.0.113.20:80", on(balance(cluster, true), balance(cluster, false), balance(cluster, false))),
			front(model.KindExternalIP, "203.0.113.21:80", on(balance(cluster, true), balance(cluster, false), balance(cluster, true))),
			front(model.KindExternalIP, "203.0.113.22:80", on(reject, drop, balance(local, true))),
			front(model.KindExternalIP, "203.0.113.23:80", on(balance(local, true), reject, drop))),
		withAffinity(port("sticky",
			front(model.KindClusterIP, "10.96.0.20:80", on(balance(cluster, false), balance(cluster, true), balance(cluster, true))),
			front(model.KindNodePort, "0.0.0.0:30090", on(balance(cluster, false), balance(cluster, true), balance(local, false)))), 3*time.Hour),
		withAffinity(port("sticky6", front(model.KindClusterIP, "[fd00:10:96::20]:80", onAll(balance(cluster6, true)))), time.Minute),
		port("web6",
			front(model.KindClusterIP, "[fd00:10:96::10]:80", on(balance(cluster6, false), balance(cluster6, true), balance(cluster6, true))),
			restricted6,
			front(model.KindNodePort, "[::]:30080", on(balance(cluster6, false), balance(cluster6, true), balance(local6, false)))),
		odd, udp, sctp,
	}
}

// creation is the ops that make objects, in the order that the ledger would
// give.
func creation(objects map[nft.Key]nft.Value) []nft.Op {
	c := NewCompiler(Options{})
	keys := table.Sorted(objects)
	slices.SortStableFunc(keys, func(a, b nft.Key) int { return c.Rank(a) - c.Rank(b) })
	var ops []nft.Op
	for _, k := range keys {
		ops = append(ops, nft.Op{Verb: ledger.Create, Key: k, New: objects[k]})
	}
	return ops
}

// differences lists how two sets of objects differ, for people.
func differences(want, have map[nft.Key]nft.Value) (diffs []string) {
	for k, v := range want {
		h, ok := have[k]
		switch {
		case !ok:
			diffs = append(diffs, "missing: "+k.String())
		case !v.Equal(h):
			diffs = append(diffs, fmt.Sprintf("differs: %s: want %+v, have %+v", k, v.Body, h.Body))
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			diffs = append(diffs, "unwanted: "+k.String())
		}
	}
	slices.Sort(diffs)
	return diffs
}
