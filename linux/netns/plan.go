// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net/netip"
)

// Place names a namespace of a Net.
type Place string

// The places that every Net has. Pods have further ones.
const (
	Node    Place = "node"
	Outside Place = "outside"
	Others  Place = "others"
)

// Plan describes a Net. Addresses of both families may be mixed.
type Plan struct {
	Node    []netip.Addr // the node's own addresses, the main one of each family first
	Pods    []Pod        // the node's pods
	Outside []netip.Addr // machines outside
	Others  []netip.Addr // other nodes and their pods

	// Here makes Node the namespace of the thread that calls New: its own addresses,
	// which Node lists, its settings and its default route stay unchanged. It gets
	// links with names that begin with Prefix, and routes by them to all other
	// addresses, which must be unused. Close removes these, and so does the kernel
	// when the process ends.
	Here   bool
	Prefix string // of the names of all links of Node but pods'; at most 11 bytes
}

// Pod is a pod of the node, in a namespace of its own.
type Pod struct {
	Place     Place
	Interface string // the node's end of the link, at most 15 bytes
	Addrs     []netip.Addr
}

// PlaceOf returns the place that has an address.
func (p Plan) PlaceOf(a netip.Addr) (Place, bool) {
	for place, addrs := range p.all {
		for _, x := range addrs {
			if x == a {
				return place, true
			}
		}
	}
	return "", false
}

// all ranges over the places and their addresses.
func (p Plan) all(yield func(Place, []netip.Addr) bool) {
	if !yield(Node, p.Node) || !yield(Outside, p.Outside) || !yield(Others, p.Others) {
		return
	}
	for _, pod := range p.Pods {
		if !yield(pod.Place, pod.Addrs) {
			return
		}
	}
}

// check returns all errors of a plan.
func (p Plan) check() error {
	var errs []error
	where := map[netip.Addr]Place{}
	for place, addrs := range p.all {
		for _, a := range addrs {
			switch first, twice := where[a]; {
			case twice:
				errs = append(errs, fmt.Errorf("%s is both in %s and in %s", a, first, place))
			case !a.IsValid() || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast():
				errs = append(errs, fmt.Errorf("%s cannot be an address of %s", a, place))
			}
			where[a] = place
		}
	}
	if len(p.Prefix) > 11 || p.Here && p.Prefix == "" {
		errs = append(errs, fmt.Errorf("prefix %q of interfaces: it is longer than 11, or missing", p.Prefix))
	}
	taken := map[string]bool{p.Prefix + uplink: true, p.Prefix + crosslink: true, "lo": true}
	places := map[Place]bool{Node: true, Outside: true, Others: true}
	for _, pod := range p.Pods {
		if n := len(pod.Interface); n == 0 || n > 15 || taken[pod.Interface] {
			errs = append(errs, fmt.Errorf("pod %s: %q cannot be the name of its interface: it is taken, empty or longer than 15", pod.Place, pod.Interface))
		}
		if places[pod.Place] || pod.Place == "" {
			errs = append(errs, fmt.Errorf("pod %q: the place is taken or has no name", pod.Place))
		}
		taken[pod.Interface], places[pod.Place] = true, true
	}
	return errors.Join(errs...)
}

// The node's own interfaces, behind Plan.Prefix.
const (
	uplink    = "eth0" // to Outside
	crosslink = "eth1" // to Others
)
