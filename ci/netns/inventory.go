// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// server is an endpoint that must exist in the network.
type server struct {
	at    netip.AddrPort
	proto model.Proto
}

// inventory is everything that has to exist for a scenario: all its steps together,
// so that endpoints that must not be reached any more still exist.
type inventory struct {
	plan    lab.Plan
	servers []server
}

func take(s *conformance.Scenario) inventory {
	c := collector{scenario: s, servers: map[server]bool{}, addrs: map[netip.Addr]bool{}}
	for _, step := range s.Steps {
		for _, name := range slices.Sorted(maps.Keys(step.Files)) {
			c.manifest(step.Files[name])
		}
		for _, row := range step.Packets {
			c.addrs[row.Src] = true
			for _, e := range row.Expect.Endpoints {
				c.server(e.Addr, row.Proto)
			}
		}
	}
	return inventory{c.plan(), slices.SortedFunc(maps.Keys(c.servers), func(a, b server) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.proto, b.proto))
	})}
}

type collector struct {
	scenario *conformance.Scenario
	node     []netip.Addr
	addrs    map[netip.Addr]bool
	servers  map[server]bool
}

func (c *collector) server(at netip.AddrPort, proto model.Proto) {
	if a := at.Addr(); a.Zone() != "" || a.Is4In6() || a.IsLoopback() || !a.IsGlobalUnicast() || at.Port() == 0 {
		return
	}
	c.addrs[at.Addr()] = true
	c.servers[server{at, proto}] = true
}

// object is the relevant part of an EndpointSlice, a Node or a List. It is parsed
// here, loosely, to be independent of the product's parser.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Items    []object

	Endpoints []struct{ Addresses []string }
	Ports     []struct {
		Port     uint16
		Protocol string
	}
	Status struct {
		Addresses []struct{ Type, Address string }
	}
}

// manifest reads what it can from a file. Invalid documents, which scenarios have on
// purpose, are skipped.
func (c *collector) manifest(data []byte) {
	for doc := range bytes.SplitSeq(data, []byte("\n---")) {
		var o object
		if yaml.Unmarshal(doc, &o) == nil {
			c.object(o)
		}
	}
}

func (c *collector) object(o object) {
	for _, item := range o.Items {
		c.object(item)
	}
	switch o.Kind {
	case "Node":
		if o.Metadata.Name == conformance.NodeName {
			c.nodeAddresses(o)
		}
	case "EndpointSlice":
		for _, e := range o.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || virtual(a) {
				continue
			}
			for _, p := range o.Ports {
				c.server(netip.AddrPortFrom(a, p.Port), protocol(p.Protocol))
			}
		}
	}
}

func (c *collector) nodeAddresses(o object) {
	for _, x := range o.Status.Addresses {
		a, err := netip.ParseAddr(x.Address)
		if err == nil && a.IsGlobalUnicast() && !slices.Contains(c.node, a) {
			c.node = append(c.node, a)
		}
	}
}

// virtual reports whether an address is a Service's: an endpoint there would be a
// loop, without a server.
func virtual(a netip.Addr) bool {
	for _, p := range []string{"10.96.0.0/16", "fd00:10:96::/112", "203.0.113.0/24", "2001:db8:cafe::/64"} {
		if netip.MustParsePrefix(p).Contains(a) {
			return true
		}
	}
	return false
}

func protocol(name string) model.Proto {
	switch strings.ToUpper(name) {
	case "UDP":
		return model.UDP
	case "SCTP":
		return model.SCTP
	}
	return model.TCP
}

// plan assigns every address to its namespace.
func (c *collector) plan() lab.Plan {
	var p lab.Plan
	p.Node = slices.Clone(c.node)
	for _, standard := range []string{"192.0.2.1", "2001:db8::1"} {
		a := netip.MustParseAddr(standard)
		if !slices.ContainsFunc(p.Node, func(x netip.Addr) bool { return x.Is4() == a.Is4() }) {
			p.Node = append(p.Node, a)
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(c.addrs), netip.Addr.Compare) {
		if slices.Contains(p.Node, a) || a.IsLoopback() {
			continue
		}
		switch conformance.LocationOf(a) {
		case conformance.AtNode:
			p.Node = append(p.Node, a)
		case conformance.AtPod:
			c.pod(&p, a)
		case conformance.AtOthers:
			p.Others = append(p.Others, a)
		default:
			p.Outside = append(p.Outside, a)
		}
	}
	return p
}

func (c *collector) pod(p *lab.Plan, a netip.Addr) {
	name := conformance.Interface(c.scenario.Host, a)
	if i := slices.IndexFunc(p.Pods, func(x lab.Pod) bool { return x.Interface == name }); i >= 0 {
		p.Pods[i].Addrs = append(p.Pods[i].Addrs, a)
		return
	}
	p.Pods = append(p.Pods, lab.Pod{Place: lab.Place("pod " + a.String()), Interface: name, Addrs: []netip.Addr{a}})
}
