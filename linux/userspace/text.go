package userspace

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Script renders objects as what iptables-restore and ip6tables-restore read, one
// part for each. Relays get ports in the order of their names; in truth the
// system chooses them.
func Script(objects map[Key]Value) string {
	ports := map[RelayID]uint16{}
	const first = 40000
	for _, k := range sorted(objects, KindRelay) {
		ports[k.Relay] = uint16(first + len(ports))
	}
	var b strings.Builder
	for _, f := range model.Families() {
		if _, ok := objects[Key{Kind: KindShelter, Family: f}]; !ok {
			continue
		}
		fmt.Fprintf(&b, "# %s; relays listen on %s, an address of lo\n", xtables.RestoreCommand(f), Shelter(f))
		batch := &batch{}
		for _, k := range sorted(objects, KindChain, KindEntry, KindJump) {
			switch v := objects[k]; {
			case k.Family != f:
			case k.Kind == KindChain:
				batch.Rewrite(k.Chain, v.Rules)
			case k.Kind == KindEntry:
				batch.put(k, entryRule(k, v.To, ports[v.To.Relay]))
			default:
				batch.put(k, jumpRule(k))
			}
		}
		b.Write(batch.Text(xtables.NAT))
	}
	return b.String()
}

// listing renders objects for people, one a line: what ports add.
func listing(objects map[Key]Value) string {
	var b strings.Builder
	for _, k := range sorted(objects, KindRelay, KindEntry) {
		v := objects[k]
		if k.Kind == KindEntry {
			fmt.Fprintf(&b, "%s\n", k.text(v.To))
			continue
		}
		fmt.Fprintf(&b, "%s:", k)
		for _, e := range v.Policy.On[model.FromOutside].Endpoints {
			fmt.Fprintf(&b, " %s", e)
		}
		if v.Policy.SessionAffinity > 0 {
			fmt.Fprintf(&b, " sticky %s", v.Policy.SessionAffinity)
		}
		for _, e := range v.Policy.Draining {
			fmt.Fprintf(&b, " draining %s", e)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// sorted returns the keys of some kinds in a fixed order.
func sorted(objects map[Key]Value, kinds ...Kind) []Key {
	var keys []Key
	for k := range maps.Keys(objects) {
		if slices.Contains(kinds, k.Kind) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Chain, b.Chain),
		a.At.Compare(b.At), cmp.Compare(a.Proto, b.Proto), a.From.Addr().Compare(b.From.Addr()), cmp.Compare(a.From.Bits(), b.From.Bits()),
		a.Relay.Port.Compare(b.Relay.Port), cmp.Compare(a.Relay.Pool, b.Relay.Pool), behind(a)-behind(b), cmp.Compare(a.Rest, b.Rest),
	)
}

func behind(k Key) int {
	if k.Late {
		return 1
	}
	return 0
}
