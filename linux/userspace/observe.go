package userspace

import (
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// natObjects turns what iptables-save says of the nat table of a family into
// objects.
func natObjects(f model.Family, saved string, put map[Key]found) error {
	tables, err := xtables.ParseSave(saved)
	if err != nil {
		return err
	}
	for _, t := range tables {
		for _, c := range t.Chains {
			if t.Name == xtables.NAT.String() {
				natChain(f, c, put)
			}
		}
	}
	return nil
}

func natChain(f model.Family, c xtables.SavedChain, put map[Key]found) {
	if jumps[c.Name] != "" {
		for _, l := range c.Rules {
			natJump(f, c.Name, l, put)
		}
		return
	}
	entries := isEntryChain(c.Name)
	if !entries && !isFixedChain(c.Name) {
		return
	}
	put[Key{Kind: KindTable, Family: f}] = found{}
	chain := found{}
	if !entries {
		chain.Rules = xtables.Canonical(c.Rules...)
	}
	put[Key{Kind: KindChain, Family: f, Chain: c.Name}] = chain
	for _, l := range c.Rules {
		if entries {
			l = xtables.Line(strings.Clone(string(l))) // names of relays are parts of it, and would keep the listing
			natEntry(f, c.Name, l, put)
		}
	}
}

func natEntry(f model.Family, chain string, l xtables.Line, put map[Key]found) {
	k, to, port, ok := entryOf(f, chain, l.Rule())
	if _, twice := put[k]; !ok || twice {
		alien(f, chain, l, put)
		return
	}
	put[k] = entryFound(to, port, installed{printed: xtables.Printed(l)})
}

// entryFound is an entry as it was read, with the port that it leads to.
func entryFound(to Target, port uint16, have installed) found {
	if to.Do == ToRelay {
		have.relay, have.port = to.Relay, port
	}
	return found{Value{To: to}, have}
}

// natJump is about rules in chains that are not ours: only those that lead to ours
// are looked at.
func natJump(f model.Family, chain string, l xtables.Line, put map[Key]found) {
	rule := l.Rule()
	k := Key{Kind: KindJump, Family: f, Chain: chain}
	switch rule.Chain() {
	case chainIn, chainOut:
	case chainLast:
		k.Late = true
	default:
		return
	}
	if _, twice := put[k]; twice || !rule.Equal(jumpRule(k)) {
		alien(f, chain, l, put)
		return
	}
	put[k] = found{Value{Rules: xtables.List(rule)}, installed{printed: xtables.Printed(l)}}
}

func alien(f model.Family, chain string, l xtables.Line, put map[Key]found) {
	k := Key{Kind: KindAlien, Family: f, Chain: chain, Rest: strings.Clone(string(l))}
	for n := 2; ; n++ { // equal rules
		if _, taken := put[k]; !taken {
			break
		}
		k.Rest = fmt.Sprintf("%s (%d)", l, n)
	}
	put[k] = found{installed: installed{printed: xtables.Printed(l)}}
}
