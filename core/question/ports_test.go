// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
)

// resolved has something in every field.
func resolved() (*model.Host, []*model.Port) {
	at := netip.MustParseAddrPort
	cluster := &model.Pool{
		Endpoints: []model.Endpoint{{Addr: at("10.0.0.1:80"), Local: true, Weight: 1}, {Addr: at("[fd00::2]:80"), NodeUnknown: true, Weight: 2}}, Table: []uint16{0, 1, 1},
	}
	local := &model.Pool{Endpoints: cluster.Endpoints[:1]}
	f := model.Frontend{
		Kind: model.KindExternalIP, At: at("192.0.2.1:80"), Restricted: true, Allow: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		On: [model.Origins]model.Action{{Pool: cluster, SNAT: true, Why: model.WhyRoute}, {Pool: local}, {Verdict: model.Drop, Why: model.WhyNoLocalEndpoints}},
	}
	host := &model.Host{
		Name: "here", Zone: "z", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, Pods: model.PodMatch{Interface: "cni0"},
		NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	}
	return host, []*model.Port{{
		ID:        model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "web"}, Name: "http", Proto: model.TCP},
		Frontends: []model.Frontend{f}, SessionAffinity: time.Minute, Scheduler: model.RoundRobin, Route: &model.RouteName{Proto: model.TCP, Namespace: "ns", Name: "r"},
		HealthPort: 32000, LocalReady: 1, Draining: []netip.AddrPort{at("10.0.0.3:80")},
	}}
}

// Whatever is another value in a port, or of the host, is another hash, and nothing else is.
func TestPortsHash(t *testing.T) {
	host, ports := resolved()
	want := question.PortsHash(host, ports)
	if want != "5:b54d302ff7b79a30" {
		t.Errorf("hash %s: raise portsScheme, else replay says that this version decides differently from earlier ones", want)
	}
	if !question.PortsHashComparable(want) || question.PortsHashComparable(want[2:]) || question.PortsHashComparable("0"+want) {
		t.Error("hashes of another scheme are compared")
	}
	host.Guard.Pods, host.Pods.CIDRs = []netip.Prefix{}, []netip.Prefix{} // as good as none
	if again := question.PortsHash(host, ports); again != want {
		t.Errorf("an empty list has another hash: %s", again)
	}
	changed := 0
	for _, part := range []any{host, ports[0]} {
		change(reflect.ValueOf(part), "", func(what string) {
			changed++
			if question.PortsHash(host, ports) == want {
				t.Errorf("%T%s is another, and the hash is the same", part, what)
			}
		})
	}
	if again := question.PortsHash(host, ports); again != want || changed < 60 {
		t.Errorf("%d changes, and undone the hash is %s", changed, again)
	}
	if n := testing.AllocsPerRun(10, func() { question.PortsHash(nil, ports) }); n > 2 {
		t.Errorf("%v allocations", n)
	}
}

// change gives every value another one, one after the other, and undoes it.
func change(v reflect.Value, path string, changed func(path string)) {
	try := func(other any) {
		before := reflect.New(v.Type()).Elem()
		before.Set(v)
		v.Set(reflect.ValueOf(other).Convert(v.Type()))
		changed(path)
		v.Set(before)
	}
	switch x := v.Interface().(type) {
	case netip.Addr:
		try(x.Next())
		return
	case netip.AddrPort:
		try(netip.AddrPortFrom(x.Addr().Next(), x.Port()))
		try(netip.AddrPortFrom(x.Addr(), x.Port()+1))
		return
	case netip.Prefix:
		try(netip.PrefixFrom(x.Addr().Next(), x.Bits()))
		try(netip.PrefixFrom(x.Addr(), x.Bits()+1))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			change(v.Field(i), path+"."+v.Type().Field(i).Name, changed)
		}
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		if v.CanSet() {
			try(reflect.Zero(v.Type()).Interface())
		}
		change(v.Elem(), path, changed)
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			change(v.Index(i), fmt.Sprintf("%s[%d]", path, i), changed)
		}
		if v.Kind() == reflect.Slice && v.CanSet() {
			try(reflect.Append(v.Slice3(0, v.Len(), v.Len()), reflect.Zero(v.Type().Elem())).Interface())
		}
	case reflect.Bool:
		try(!v.Bool())
	case reflect.String:
		try(v.String() + "x")
	case reflect.Uint8, reflect.Uint16, reflect.Uint64:
		try(v.Uint() + 1)
	default:
		try(v.Int() + 1<<20)
	}
}
