package userspace

import (
	"fmt"

	"github.com/tandem-proxy/tandem/core/model"
)

// objects turns what iptables-save says of a family into objects.
func (s saved) objects(f model.Family, put map[Key]found) {
	for _, name := range ourChains() {
		if s.chains[name] {
			put[Key{Kind: KindTable, Family: f}] = found{}
			put[Key{Kind: KindChain, Family: f, Chain: name}] = found{}
		}
	}
	for _, r := range s.rules {
		switch {
		case isEntryChain(r.chain):
			r.entry(f, put)
		case jumps[r.chain] != "":
			r.jump(f, put)
		default:
			k := Key{Kind: KindChain, Family: f, Chain: r.chain}
			if !r.known {
				r.rule = Rule{Comment: r.text, Jump: "?"}
			}
			chain := put[k]
			chain.Rules = append(chain.Rules, r.rule)
			put[k] = chain
		}
	}
}

func (r savedRule) entry(f model.Family, put map[Key]found) {
	k, to, port, ok := entryOf(f, r.chain, r.rule)
	if _, twice := put[k]; !r.known || !ok || twice {
		r.alien(f, put)
		return
	}
	put[k] = entryFound(to, port, installed{text: r.text})
}

// entryFound is an entry as it was read, with the port that it leads to.
func entryFound(to Target, port uint16, have installed) found {
	if to.Do == ToRelay {
		have.relay, have.port = to.Relay, port
	}
	return found{Value{To: to}, have}
}

// jump is about rules in chains that are not ours: only those that lead to ours
// are looked at.
func (r savedRule) jump(f model.Family, put map[Key]found) {
	k := Key{Kind: KindJump, Family: f, Chain: r.chain}
	switch r.rule.Jump {
	case chainIn, chainOut:
	case chainLast:
		k.Rest = last
	default:
		return
	}
	if _, twice := put[k]; twice || !r.known || r.rule != jumpRule(k) {
		r.alien(f, put)
		return
	}
	put[k] = found{Value{Rules: []Rule{r.rule}}, installed{text: r.text}}
}

func (r savedRule) alien(f model.Family, put map[Key]found) {
	k := Key{Kind: KindAlien, Family: f, Chain: r.chain, Rest: r.text}
	for n := 2; ; n++ { // equal rules
		if _, taken := put[k]; !taken {
			break
		}
		k.Rest = fmt.Sprintf("%s (%d)", r.text, n)
	}
	put[k] = found{installed: installed{text: r.text}}
}
