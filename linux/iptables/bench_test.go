// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// manyPorts makes n Services with five endpoints each.
func manyPorts(n int) []*model.Port {
	ports := make([]*model.Port, n)
	for i := range ports {
		pool := &model.Pool{}
		for e := range 5 {
			k := i*5 + e
			a := netip.AddrFrom4([4]byte{10, byte(128 + k>>16), byte(k >> 8), byte(k)})
			pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(a, 8080)})
		}
		act := model.Action{Pool: pool}
		masked := model.Action{Pool: pool, SNAT: true}
		ports[i] = &model.Port{
			ID: model.PortID{Service: model.ServiceName{Namespace: "default", Name: fmt.Sprint("service-", i)}, Name: "http", Proto: model.TCP},
			Frontends: []model.Frontend{{
				At: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80),
				On: [...]model.Action{act, masked, masked},
			}},
		}
	}
	return ports
}

var benchHost = &model.Host{Pods: model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/9")}}}

// BenchmarkCompile is the compiler alone, a port at a time.
func BenchmarkCompile(b *testing.B) {
	c := NewCompiler(Options{})
	ports := manyPorts(1000)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		c.Port(benchHost, ports[n%len(ports)], func(Key, Value) {})
		n++
	}
}

// BenchmarkScript is the way from objects to text, and back from there.
func BenchmarkScript(b *testing.B) {
	c := NewCompiler(Options{Families: []model.Family{model.IPv4}})
	var ops []op
	seen := map[Key]bool{}
	for _, p := range manyPorts(10000) {
		c.Port(benchHost, p, func(k Key, v Value) {
			if k.Table == xtables.NAT && !seen[k] {
				seen[k] = true
				ops = append(ops, op{Verb: ledger.Create, Key: k, New: v})
			}
		})
	}
	var s xtables.Script
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			s, _ = sharedChains{}.apply(ops)
			_ = s.Text(xtables.NAT)
		}
	})
	text := string(s.Text(xtables.NAT))
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := read(model.IPv4, text); err != nil {
				b.Fatal(err)
			}
		}
	})
}
