// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// What a newer version of an object changes is compared when it arrives, since neither version is kept. That costs what
// comparing the two objects does, however many others there are.

// ServiceChange says which fields of a Service differ, as the API names them; empty where one version is absent.
func ServiceChange(was, is *model.Service) string {
	if was == nil || is == nil {
		return ""
	}
	var d differences
	var before []any
	was.Fields(func(_ string, field any) { before = append(before, field) })
	is.Fields(func(name string, field any) {
		d.field(name, before[0], field)
		before = before[1:]
	})
	if !was.Created.Equal(is.Created) {
		d.say("created again")
	}
	return d.text()
}

// field compares two values of a field, of which it gets pointers.
func (d *differences) field(name string, was, is any) {
	switch is := is.(type) {
	case *[]netip.Addr:
		members(d, name, *was.(*[]netip.Addr), *is)
	case *[]netip.Prefix:
		members(d, name, *was.(*[]netip.Prefix), *is)
	case *[]model.ServicePort:
		d.ports(name, *was.(*[]model.ServicePort), *is)
	case *model.ServiceType:
		scalar(d, name, typeName(*was.(*model.ServiceType)), typeName(*is))
	case *model.TrafficPolicy:
		scalar(d, name, policyName(*was.(*model.TrafficPolicy)), policyName(*is))
	default:
		scalar(d, name, reflect.ValueOf(was).Elem().Interface(), reflect.ValueOf(is).Elem().Interface())
	}
}

func typeName(t model.ServiceType) string {
	return [...]string{"ClusterIP", "NodePort", "LoadBalancer"}[t]
}

func policyName(p model.TrafficPolicy) string { return [...]string{"Cluster", "Local"}[p] }

// SliceChange says which endpoints and ports of an EndpointSlice differ. All are added of a new one, and deleted of one that
// is gone.
func SliceChange(was, is *model.Slice) string {
	var d differences
	none := was == nil || is == nil
	if was == nil {
		was = &model.Slice{}
	}
	if is == nil {
		is = &model.Slice{}
	}
	d.endpoints(was.Endpoints, is.Endpoints)
	if none {
		return printable.CutBytes(strings.Join(d.parts(), ", "), maxWhat)
	}
	if was.Service != is.Service {
		d.say("moved from Service %s", was.Service)
	}
	if !slices.Equal(was.Ports, is.Ports) {
		d.ports("target port", targetPorts(was), targetPorts(is))
	}
	scalar(&d, "weight", weight(was), weight(is))
	scalar(&d, "address family", was.Family, is.Family)
	if len(d) == 0 && was.Pods != is.Pods { // else they come with their endpoints
		d.say("other pods at the same addresses")
	}
	return d.text()
}

func weight(s *model.Slice) string {
	if !s.Weighted {
		return "none"
	}
	return fmt.Sprint(s.Weight)
}

// differences are what differs between two versions. Members of lists that differ in the same way are one of them.
type differences []difference

type difference struct {
	thing, how string   // "endpoint", "added"
	names      []string // the first members
	n          int      // members; 0 where thing is all there is to say
}

// The bounds of what is kept of each change: the members of a list that are named, and the bytes of the text.
const (
	mostNamed = 3
	maxWhat   = 200
)

func (d *differences) say(format string, args ...any) {
	*d = append(*d, difference{thing: fmt.Sprintf(format, args...)})
}

// note adds a member of a list; its name is made only of the first ones.
func (d *differences) note(thing, how string, name func() string) {
	i := slices.IndexFunc(*d, func(one difference) bool { return one.thing == thing && one.how == how })
	if i < 0 {
		i = len(*d)
		*d = append(*d, difference{thing: thing, how: how})
	}
	one := &(*d)[i]
	if one.n++; one.n <= mostNamed {
		one.names = append(one.names, name())
	}
}

// text joins what differs between versions that both are there.
func (d differences) text() string {
	if len(d) == 0 {
		return "nothing that is used"
	}
	return printable.CutBytes(strings.Join(d.parts(), ", "), maxWhat)
}

func (d differences) parts() (parts []string) {
	for _, one := range d {
		text := one.thing
		if one.n > 0 {
			if one.n > 1 {
				text += "s"
			}
			text = strings.TrimSpace(text + " " + printable.First(one.names, one.n) + " " + one.how)
		}
		parts = append(parts, text)
	}
	return parts
}

func scalar[T comparable](d *differences, name string, was, is T) {
	if was != is {
		d.say("%s %v → %v", name, was, is)
	}
}

// members compares lists that are small sets.
func members[T interface {
	comparable
	String() string
}](d *differences, thing string, was, is []T) {
	if slices.Equal(was, is) {
		return
	}
	before, after := set(was), set(is)
	for _, v := range is {
		if !before[v] {
			d.note(thing, "added", v.String)
		}
	}
	for _, v := range was {
		if !after[v] {
			d.note(thing, "deleted", v.String)
		}
	}
}

func set[T comparable](list []T) map[T]bool {
	all := make(map[T]bool, len(list))
	for _, v := range list {
		all[v] = true
	}
	return all
}

// ports compares lists of ports. One of the same name and protocol is the same port.
func (d *differences) ports(thing string, was, is []model.ServicePort) {
	if slices.Equal(was, is) {
		return
	}
	type key struct {
		name  string
		proto model.Proto
	}
	left := make(map[key]model.ServicePort, len(was))
	for _, p := range was {
		left[key{p.Name, p.Proto}] = p
	}
	for _, p := range is {
		old, had := left[key{p.Name, p.Proto}]
		delete(left, key{p.Name, p.Proto})
		if !had {
			d.note(thing, "added", func() string { return fmt.Sprintf("%d/%s", p.Port, p.Proto) })
			continue
		}
		if old.Port != p.Port {
			d.note(thing, "", func() string { return fmt.Sprintf("%d → %d", old.Port, p.Port) })
		}
		if old.NodePort != p.NodePort {
			d.note("node port", "", func() string { return fmt.Sprintf("%d → %d", old.NodePort, p.NodePort) })
		}
	}
	for _, p := range was {
		if _, gone := left[key{p.Name, p.Proto}]; gone {
			d.note(thing, "deleted", func() string { return fmt.Sprintf("%d/%s", p.Port, p.Proto) })
		}
	}
}

// targetPorts are the ports of a slice, for the comparison.
func targetPorts(s *model.Slice) []model.ServicePort {
	all := make([]model.ServicePort, len(s.Ports))
	for i, p := range s.Ports {
		all[i] = model.ServicePort{Name: p.Name, Proto: p.Proto, Port: p.Port}
	}
	return all
}

// endpoints compares those of two versions, of which most are the same, and in the same places at both ends.
func (d *differences) endpoints(was, is []model.SliceEndpoint) {
	for len(was) > 0 && len(is) > 0 && alike(&was[0], &is[0]) {
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && alike(&was[len(was)-1], &is[len(is)-1]) {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	left := make(map[netip.Addr]*model.SliceEndpoint, len(was))
	for i := range was {
		left[was[i].Addr] = &was[i]
	}
	for i := range is {
		e := &is[i]
		old := left[e.Addr]
		delete(left, e.Addr)
		for _, how := range newsOf(old, e) {
			d.note("endpoint", how, e.Addr.String)
		}
	}
	for i := range was {
		if left[was[i].Addr] != nil {
			d.note("endpoint", "deleted", was[i].Addr.String)
		}
	}
}

// newsOf says what has become of an endpoint; was is nil where it is added.
func newsOf(was, is *model.SliceEndpoint) (news []string) {
	if was == nil {
		if is.State.Has(model.Ready) {
			return []string{"added"}
		}
		return []string{"added, " + condition(is.State)}
	}
	if was.State != is.State {
		news = append(news, condition(is.State))
	}
	if was.Node != is.Node {
		news = append(news, "on another node")
	}
	if !sameHints(was, is) {
		news = append(news, "with other hints")
	}
	return news
}

// alike reports what newsOf says nothing about. Package model compares by reflection, which is slow for so many.
func alike(a, b *model.SliceEndpoint) bool {
	return a.Addr == b.Addr && a.State == b.State && a.Node == b.Node && sameHints(a, b)
}

func sameHints(a, b *model.SliceEndpoint) bool {
	return a.Hints == b.Hints || model.Same(a.Hints, b.Hints)
}

// condition is a state in a few words.
func condition(s model.EndpointState) string {
	switch {
	case s.Has(model.Terminating | model.Serving):
		return "terminating"
	case s.Has(model.Terminating):
		return "terminating, not serving"
	case s.Has(model.Ready):
		return "ready"
	}
	return "not ready"
}
