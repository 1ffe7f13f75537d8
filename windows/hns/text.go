package hns

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// script is what would be asked of HNS, in the words of its schema. Ids, which
// only HNS knows, are replaced by addresses.
type script struct {
	Endpoints     []Endpoint
	LoadBalancers []LoadBalancer
}

// Script renders objects as the JSON that HNS would be given. Where remote pods
// lie on an overlay, and its source VIP, is known on the node only.
func Script(objects map[Key]Value, overlay bool) string {
	f := facts{network: network{overlay: overlay}, hostMAC: "(host)"}
	s := script{Endpoints: []Endpoint{}, LoadBalancers: []LoadBalancer{}}
	for _, k := range slices.SortedFunc(maps.Keys(objects), Key.compare) {
		v := objects[k]
		switch k.Kind {
		case KindNode:
			f.node[model.FamilyOf(k.Addr)] = v.Node
		case KindBalancer:
			s.LoadBalancers = append(s.LoadBalancers, f.balancer(k, v, names(v.Balancer.Endpoints)))
		default:
			s.Endpoints = append(s.Endpoints, f.endpoint(k, v))
		}
	}
	b, _ := json.MarshalIndent(s, "", "  ") // plain structs of strings and numbers
	return string(b) + "\n"
}

func names(ts []Target) []string {
	all := make([]string, len(ts))
	for i, t := range ts {
		all[i] = t.String()
	}
	return all
}

// String says in a line what an object is besides its name.
func (v Value) String() string {
	var words []string
	if b := v.Balancer; b != nil {
		words = append(words, fmt.Sprintf("to port %d of", b.Port))
		for _, t := range b.Endpoints {
			words = append(words, t.String())
		}
		for _, flag := range [...]struct {
			set  bool
			name string
		}{{b.DSR, "DSR"}, {b.External, "external"}, {b.Sticky, "sticky"}, {b.KeepVIP, "destination kept"}} {
			if flag.set {
				words = append(words, flag.name)
			}
		}
	}
	if v.Node.IsValid() {
		words = append(words, "on "+v.Node.String())
	}
	if v.Stray != "" {
		words = append(words, "("+v.Stray+")")
	}
	return strings.Join(words, " ")
}
