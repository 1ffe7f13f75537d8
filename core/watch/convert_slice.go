// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/tandem-proxy/tandem/core/model"
)

// Slice converts an EndpointSlice. It returns nil for those that no proxy
// serves: of headless Services, with host names, or without the label that
// names the Service.
func Slice(s *discoveryv1.EndpointSlice) (*model.Slice, []model.Problem) {
	if s == nil || s.Labels[discoveryv1.LabelServiceName] == "" || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, nil
	}
	if _, headless := s.Labels[corev1.IsHeadlessService]; headless {
		return nil, nil
	}
	of := model.ServiceName{Namespace: intern(s.Namespace), Name: intern(s.Labels[discoveryv1.LabelServiceName])}
	f := &faults{kind: "EndpointSlice", meta: &s.ObjectMeta, of: of}
	family, ok := addressType(s.AddressType)
	if !ok {
		f.bad(model.WhyInvalid, "addressType", string(s.AddressType), "not IPv4, IPv6 or FQDN")
		return nil, f.problems()
	}
	weight, weighted := weight(f)
	return &model.Slice{
		Name:      model.SliceName{Namespace: of.Namespace, Name: s.Name},
		Service:   of.Name,
		Family:    family,
		Ports:     slicePorts(f, s.Ports),
		Endpoints: endpoints(f, family, s.Endpoints),
		Triggered: triggered(s.Annotations[corev1.EndpointsLastChangeTriggerTime]),
		Version:   versionNumber(s.ResourceVersion),
		Weight:    weight,
		Weighted:  weighted,
	}, f.problems()
}

func addressType(t discoveryv1.AddressType) (f model.Family, ok bool) {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return model.IPv4, true
	case discoveryv1.AddressTypeIPv6:
		return model.IPv6, true
	}
	return 0, false
}

// triggered parses the time of the change that led to a slice. It only feeds a
// metric, so an invalid one is ignored.
func triggered(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// slicePorts converts ports. A port without number would mean "all ports",
// which no Service port can refer to.
func slicePorts(f *faults, list []discoveryv1.EndpointPort) []model.SlicePort {
	type name struct {
		name  string
		proto model.Proto
	}
	var names model.Unique[name]
	ports := make([]model.SlicePort, 0, len(list))
	for i := range list {
		p, ok := slicePort(f, i, &list[i])
		switch {
		case !ok:
		case !names.Add(name{p.Name, p.Proto}):
			f.bad(model.WhyInvalid, at("ports", i, "name"), p.Name, "duplicate, the first one is used")
		default:
			ports = append(ports, p)
		}
	}
	return ports
}

func slicePort(f *faults, i int, p *discoveryv1.EndpointPort) (port model.SlicePort, ok bool) {
	var name, protoName string
	if p.Name != nil {
		name = *p.Name
	}
	if p.Protocol != nil {
		protoName = string(*p.Protocol)
	}
	if p.Port == nil {
		f.add(model.WhyInvalid, at("ports", i, "port"), "missing, port ignored")
		return port, false
	}
	number, okPort := port16(*p.Port)
	proto, okProto := protocol(protoName)
	switch {
	case !okPort:
		f.bad(model.WhyInvalid, at("ports", i, "port"), strconv.Itoa(int(*p.Port)), "not within 1..65535, port ignored")
	case !okProto:
		f.bad(model.WhyInvalid, at("ports", i, "protocol"), protoName, "not TCP, UDP or SCTP; port ignored")
	case !portName(name):
		f.bad(model.WhyInvalid, at("ports", i, "name"), name, "not a DNS label, port ignored")
	default:
		return model.SlicePort{Name: intern(name), Proto: proto, Port: number}, true
	}
	return port, false
}

func endpoints(f *faults, family model.Family, list []discoveryv1.Endpoint) []model.SliceEndpoint {
	out := make([]model.SliceEndpoint, 0, len(list))
	var last *model.Hints
	for i := range list {
		e := &list[i]
		if len(e.Addresses) == 0 {
			f.add(model.WhyBadAddress, at("endpoints", i, "addresses"), "empty")
			continue
		}
		addr, remark := serviceAddr(e.Addresses[0])
		if remark == "" && model.FamilyOf(addr) != family {
			remark = "in a slice of " + family.String()
		}
		if remark != "" {
			f.bad(model.WhyBadAddress, at("endpoints", i, "addresses[0]"), e.Addresses[0], remark)
			continue
		}
		f.zeros("endpoints", i, "addresses[0]", e.Addresses[0])
		ep := model.SliceEndpoint{Addr: addr, State: state(&e.Conditions)}
		if e.NodeName != nil {
			ep.Node = intern(*e.NodeName)
		}
		if e.Hints != nil {
			last = hints(f, i, e.Hints, last)
			ep.Hints = last
		}
		out = append(out, ep)
	}
	return out
}

// state applies the defaults of absent conditions: an endpoint is ready and
// serving unless said otherwise, and not terminating.
func state(c *discoveryv1.EndpointConditions) model.EndpointState {
	var s model.EndpointState
	if c.Ready == nil || *c.Ready {
		s |= model.Ready
	}
	if c.Serving == nil || *c.Serving {
		s |= model.Serving
	}
	if c.Terminating != nil && *c.Terminating {
		s |= model.Terminating
	}
	return s
}

// maxHints is how many zones, and how many nodes, one endpoint can be meant for:
// what an API server admits. They are looked through for each port.
const maxHints = 8

// hints converts the hints of an endpoint. Neighbours in a slice mostly have
// equal ones, which are then shared.
func hints(f *faults, i int, h *discoveryv1.EndpointHints, last *model.Hints) *model.Hints {
	if len(h.ForZones) == 0 && len(h.ForNodes) == 0 {
		return nil
	}
	if last != nil && sameHints(h, last) {
		return last
	}
	if n := max(len(h.ForZones), len(h.ForNodes)); n > maxHints {
		f.bad(model.WhyInvalid, at("endpoints", i, "hints"), strconv.Itoa(n), fmt.Sprintf("more than %d, the rest is ignored", maxHints))
	}
	out := &model.Hints{}
	for _, z := range h.ForZones[:min(len(h.ForZones), maxHints)] {
		out.Zones = append(out.Zones, intern(z.Name))
	}
	for _, n := range h.ForNodes[:min(len(h.ForNodes), maxHints)] {
		out.Nodes = append(out.Nodes, intern(n.Name))
	}
	return out
}

func sameHints(h *discoveryv1.EndpointHints, o *model.Hints) bool {
	return slices.EqualFunc(h.ForZones, o.Zones, func(z discoveryv1.ForZone, s string) bool { return z.Name == s }) &&
		slices.EqualFunc(h.ForNodes, o.Nodes, func(n discoveryv1.ForNode, s string) bool { return n.Name == s })
}
