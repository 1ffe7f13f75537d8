// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
)

func service() *model.Service {
	return &model.Service{
		Name: model.ServiceName{Namespace: "shop", Name: "web"}, Version: 1, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports: []model.ServicePort{{Name: "http", Proto: model.TCP, Port: 80}, {Name: "dns", Proto: model.UDP, Port: 53}},
	}
}

func slice(ends ...model.SliceEndpoint) *model.Slice {
	return &model.Slice{
		Name: model.SliceName{Namespace: "shop", Name: "web-abc"}, Service: "web", Endpoints: ends,
		Ports: []model.SlicePort{{Name: "http", Proto: model.TCP, Port: 8080}},
	}
}

func at(last int, state model.EndpointState) model.SliceEndpoint {
	return model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(last >> 8), byte(last)}), State: state, Node: "node-1"}
}

// A change of a Service or an EndpointSlice is told in the words of the API, shortly also where all of it is another.
func TestWhatChanged(t *testing.T) {
	const ready = model.Ready | model.Serving
	for name, c := range map[string]struct {
		edit func(*model.Service)
		want string
	}{
		"nothing":  {func(s *model.Service) { s.Version = 2 }, "nothing that is used"},
		"port":     {func(s *model.Service) { s.Ports[0].Port = 81 }, "port 80 → 81"},
		"ports":    {func(s *model.Service) { s.Ports = s.Ports[1:] }, "port 80/tcp deleted"},
		"nodePort": {func(s *model.Service) { s.Type, s.Ports[0].NodePort = model.NodePort, 30080 }, "type ClusterIP → NodePort, node port 0 → 30080"},
		"policy":   {func(s *model.Service) { s.External = model.Local }, "externalTrafficPolicy Cluster → Local"},
		"address": {
			func(s *model.Service) { s.ClusterIPs[0] = netip.MustParseAddr("10.96.0.11") },
			"cluster IP 10.96.0.11 added, cluster IP 10.96.0.10 deleted",
		},
	} {
		is := service()
		c.edit(is)
		if got := history.ServiceChange(service(), is); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	three := func() []model.SliceEndpoint { return []model.SliceEndpoint{at(1, ready), at(2, ready), at(3, ready)} }
	for name, c := range map[string]struct {
		edit func(*model.Slice)
		want string
	}{
		"added":       {func(s *model.Slice) { s.Endpoints = append(s.Endpoints, at(4, ready)) }, "endpoint 10.244.0.4 added"},
		"deleted":     {func(s *model.Slice) { s.Endpoints = s.Endpoints[1:] }, "endpoint 10.244.0.1 deleted"},
		"not ready":   {func(s *model.Slice) { s.Endpoints[1].State = 0 }, "endpoint 10.244.0.2 not ready"},
		"terminating": {func(s *model.Slice) { s.Endpoints[1].State = model.Serving | model.Terminating }, "endpoint 10.244.0.2 terminating"},
		"target":      {func(s *model.Slice) { s.Ports[0].Port = 9090 }, "target port 8080 → 9090"},
		"weight":      {func(s *model.Slice) { s.Weighted, s.Weight = true, 7 }, "weight none → 7"},
		"order": {
			func(s *model.Slice) { s.Endpoints[0], s.Endpoints[2] = s.Endpoints[2], s.Endpoints[0] },
			"nothing that is used",
		},
	} {
		is := slice(three()...)
		c.edit(is)
		if got := history.SliceChange(slice(three()...), is); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := history.SliceChange(nil, slice(three()...)); got != "endpoints 10.244.0.1, 10.244.0.2, 10.244.0.3 added" {
		t.Error(got)
	}
	var many []model.SliceEndpoint
	for i := range 1000 {
		many = append(many, at(1000+i, ready))
	}
	got := history.SliceChange(slice(three()...), slice(many...))
	if want := "and 997 more added, endpoints 10.244.0.1, 10.244.0.2, 10.244.0.3 deleted"; !strings.HasSuffix(got, want) {
		t.Error(got)
	}
}

// No field of an input changes without a word. A new field has to be added to the comparison.
func TestEachFieldHasAWord(t *testing.T) {
	for field := range reflect.TypeFor[model.Service]().Fields() {
		if field.Tag.Get("same") == "-" || field.Name == "Name" {
			continue
		}
		is := service()
		other(t, reflect.ValueOf(is).Elem().FieldByName(field.Name))
		if got := history.ServiceChange(service(), is); got == "nothing that is used" {
			t.Errorf("Service.%s: %s", field.Name, got)
		}
	}
	for field := range reflect.TypeFor[model.Slice]().Fields() {
		if field.Tag.Get("same") == "-" || field.Name == "Name" || field.Name == "Triggered" || field.Name == "Weight" { // of Weighted
			continue
		}
		is := slice(at(1, model.Ready))
		other(t, reflect.ValueOf(is).Elem().FieldByName(field.Name))
		if got := history.SliceChange(slice(at(1, model.Ready)), is); got == "nothing that is used" {
			t.Errorf("Slice.%s: %s", field.Name, got)
		}
	}
	for field := range reflect.TypeFor[model.SliceEndpoint]().Fields() {
		if field.Tag.Get("same") == "-" {
			continue
		}
		is := slice(at(1, model.Ready))
		other(t, reflect.ValueOf(is).Elem().FieldByName("Endpoints").Index(0).FieldByName(field.Name))
		if got := history.SliceChange(slice(at(1, model.Ready)), is); got == "nothing that is used" {
			t.Errorf("SliceEndpoint.%s: %s", field.Name, got)
		}
	}
}

// other gives a field another value.
func other(t *testing.T, v reflect.Value) {
	t.Helper()
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Unix(1, 0)
		return
	case *netip.Addr:
		*x = netip.MustParseAddr("192.0.2.1")
		return
	case **model.Hints:
		*x = &model.Hints{Zones: []string{"a"}}
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	case reflect.Struct:
		other(t, v.Field(0))
	case reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(v.Uint() ^ 1)
	default:
		t.Fatal(v.Kind())
	}
}

// Of a changed endpoint among a thousand, what is compared and what is kept does not grow with the others' text.
func TestWhatChangedIsShort(t *testing.T) {
	var was, is []model.SliceEndpoint
	for i := range 1000 {
		was, is = append(was, at(i, model.Ready)), append(is, at(i, model.Ready))
	}
	is[500].State = 0
	old, now := slice(was...), slice(is...)
	if n := testing.AllocsPerRun(10, func() { history.SliceChange(old, now) }); n > 20 {
		t.Errorf("%v allocations", n)
	}
	service := service()
	for i := range 60000 {
		service.Ports = append(service.Ports, model.ServicePort{Name: fmt.Sprint(i), Port: uint16(i)})
	}
	if got := history.ServiceChange(service, &model.Service{}); len(got) > 200 {
		t.Errorf("%d bytes", len(got))
	}
}
