// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
)

func endpointSlice(edit func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr[int32](8080)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.2"}}},
	}
	edit(s)
	return s
}

func TestSliceWhole(t *testing.T) {
	got, problems := Slice(endpointSlice(func(s *discoveryv1.EndpointSlice) {
		s.AddressType = discoveryv1.AddressTypeIPv6
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-21T08:00:00.5Z"}
		s.Ports = []discoveryv1.EndpointPort{
			{Name: ptr("http"), Protocol: ptr(corev1.ProtocolTCP), Port: ptr[int32](8080)},
			{Name: ptr("http"), Protocol: ptr(corev1.ProtocolUDP), Port: ptr[int32](8081)},
		}
		zones := &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-a"}}, ForNodes: []discoveryv1.ForNode{{Name: "node-1"}}}
		s.Endpoints = []discoveryv1.Endpoint{
			{Addresses: []string{"FD00:0::2", "fd00::99"}, NodeName: ptr("node-1"), Hints: zones, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-a"}},
			{Addresses: []string{"fd00::3"}, Hints: zones.DeepCopy(), TargetRef: &corev1.ObjectReference{Kind: "Node", Name: "node-1"}},
			{Addresses: []string{"fd00::4"}, Hints: &discoveryv1.EndpointHints{}},
			{Addresses: []string{"fd00::5"}, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-b"}}}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-b"}},
		}
	}))
	expect(t, problems)
	hints := &model.Hints{Zones: []string{"zone-a"}, Nodes: []string{"node-1"}}
	up := model.Ready | model.Serving
	want := &model.Slice{
		Name: model.SliceName{Namespace: "default", Name: "web-x"}, Service: "web", Family: model.IPv6,
		Triggered: time.Date(2026, 11, 21, 8, 0, 0, 500e6, time.UTC),
		Ports:     []model.SlicePort{{Name: "http", Proto: model.TCP, Port: 8080}, {Name: "http", Proto: model.UDP, Port: 8081}},
		Pods:      "web-/a///b",
		Endpoints: []model.SliceEndpoint{
			{Addr: addrs("fd00::2")[0], Node: "node-1", State: up, Hints: hints},
			{Addr: addrs("fd00::3")[0], State: up, Hints: hints},
			{Addr: addrs("fd00::4")[0], State: up},
			{Addr: addrs("fd00::5")[0], State: up, Hints: &model.Hints{Zones: []string{"zone-b"}}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got.Endpoints[0].Hints != got.Endpoints[1].Hints {
		t.Error("equal hints are not shared")
	}
}

func TestSliceNotOurs(t *testing.T) {
	for name, s := range map[string]*discoveryv1.EndpointSlice{
		"nil":      nil,
		"empty":    {},
		"no label": endpointSlice(func(s *discoveryv1.EndpointSlice) { s.Labels = nil }),
		"unnamed":  endpointSlice(func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "" }),
		"headless": endpointSlice(func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" }),
		"FQDN":     endpointSlice(func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }),
	} {
		if got, problems := Slice(s); got != nil || problems != nil {
			t.Errorf("%s: %v, %v", name, got, problems)
		}
	}
	for addressType, want := range map[string]string{
		"":    `Invalid: addressType: "" (not IPv4, IPv6 or FQDN)`,
		"IPX": "Invalid: addressType: IPX (not IPv4, IPv6 or FQDN)",
	} {
		got, problems := Slice(endpointSlice(func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressType(addressType) }))
		expect(t, problems, want)
		if got != nil {
			t.Errorf("%q: %+v", addressType, got)
		}
		if name, ok := problems[0].Service(); !ok || name != (model.ServiceName{Namespace: "default", Name: "web"}) {
			t.Errorf("%q: the problem is of %v", addressType, name)
		}
	}
}

func TestSlicePorts(t *testing.T) {
	got, problems := Slice(endpointSlice(func(s *discoveryv1.EndpointSlice) {
		s.Ports = []discoveryv1.EndpointPort{
			{},
			{Port: ptr[int32](0)},
			{Port: ptr[int32](-1)},
			{Port: ptr[int32](70000)},
			{Port: ptr[int32](1), Protocol: ptr(corev1.Protocol("XTP"))},
			{Port: ptr[int32](1), Name: ptr("$(id)")},
			{Port: ptr[int32](8080)},
			{Port: ptr[int32](8081), Name: ptr("")},
			{Port: ptr[int32](8082), Name: ptr("b"), Protocol: ptr(corev1.Protocol(""))},
		}
	}))
	expect(t, problems,
		"Invalid: ports[0].port (missing, port ignored)",
		"Invalid: ports[1].port: 0 (not within 1..65535, port ignored)",
		"Invalid: ports[2].port: -1 (not within 1..65535, port ignored)",
		"Invalid: ports[3].port: 70000 (not within 1..65535, port ignored)",
		"Invalid: ports[4].protocol: XTP (not TCP, UDP or SCTP; port ignored)",
		`Invalid: ports[5].name: "$(id)" (not a DNS label, port ignored)`,
		`Invalid: ports[7].name: "" (duplicate, the first one is used)`)
	want := []model.SlicePort{{Proto: model.TCP, Port: 8080}, {Name: "b", Proto: model.TCP, Port: 8082}}
	if !reflect.DeepEqual(got.Ports, want) {
		t.Errorf("got %+v", got.Ports)
	}
}

func TestSliceEndpoints(t *testing.T) {
	got, problems := Slice(endpointSlice(func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = nil
		for _, a := range []string{
			"127.0.0.1", "169.254.169.254", "0.0.0.0", "239.1.1.1", "255.255.255.255", "::ffff:10.0.0.1",
			"0x0a.0.0.1", "fd00::1", "", "abc", "10.0.0.1/24", "10.0.0.9",
		} {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{})
	}))
	const bad = "BadAddress: endpoints"
	expect(t, problems,
		bad+"[0].addresses[0]: 127.0.0.1 (loopback)",
		bad+"[1].addresses[0]: 169.254.169.254 (link-local)",
		bad+"[2].addresses[0]: 0.0.0.0 (unspecified)",
		bad+"[3].addresses[0]: 239.1.1.1 (multicast)",
		bad+"[4].addresses[0]: 255.255.255.255 (broadcast)",
		bad+"[5].addresses[0]: ::ffff:10.0.0.1 (IPv4-mapped)",
		bad+"[6].addresses[0]: 0x0a.0.0.1 (not an IP address)",
		bad+"[7].addresses[0]: fd00::1 (in a slice of IPv4)",
		bad+`[8].addresses[0]: "" (not an IP address)`,
		bad+"[9].addresses[0]: abc (not an IP address)",
		bad+"[10].addresses[0]: 10.0.0.1/24 (not an IP address)",
		bad+"[12].addresses (empty)")
	if len(got.Endpoints) != 1 || got.Endpoints[0].Addr != addrs("10.0.0.9")[0] {
		t.Errorf("got %+v", got.Endpoints)
	}
}

func TestSliceConditions(t *testing.T) {
	yes, no := ptr(true), ptr(false)
	for _, c := range []struct {
		ready, serving, terminating *bool
		want                        model.EndpointState
	}{
		{nil, nil, nil, model.Ready | model.Serving},
		{yes, yes, no, model.Ready | model.Serving},
		{no, nil, nil, model.Serving},
		{no, yes, yes, model.Serving | model.Terminating},
		{yes, no, nil, model.Ready},
		{no, no, yes, model.Terminating},
		{no, no, no, 0},
	} {
		got, _ := Slice(endpointSlice(func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: c.ready, Serving: c.serving, Terminating: c.terminating}
		}))
		if got.Endpoints[0].State != c.want {
			t.Errorf("%+v: %b", c, got.Endpoints[0].State)
		}
	}
}

func TestSliceBadTrigger(t *testing.T) {
	got, problems := Slice(endpointSlice(func(s *discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "yesterday"}
	}))
	if expect(t, problems); !got.Triggered.IsZero() {
		t.Errorf("triggered %s", got.Triggered)
	}
}
