package userspace

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Observe implements dataplane.Driver.
func (d *Driver) Observe(ctx context.Context) (map[Key]Value, error) {
	d.mu.Lock()
	d.meanwhile = map[Key]bool{}
	d.table.Reading()
	d.mu.Unlock()
	tables, sheltered, err := d.read(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	meanwhile := d.meanwhile
	d.meanwhile = nil
	if err != nil {
		return nil, err
	}
	o := observation{driver: d, objects: map[Key]Value{}, rules: map[Key]installed{}}
	for _, f := range d.table.Families() {
		if sheltered[f] {
			o.objects[Key{Kind: KindShelter, Family: f}] = Value{}
		}
		if d.sinks[f] != nil {
			o.objects[Key{Kind: KindSink, Family: f}] = Value{}
		}
		o.table(f, tables[f])
	}
	for id, r := range d.relays {
		o.objects[Key{Kind: KindRelay, Family: id.Port.Family, Relay: id}] = Value{Policy: r.policy}
	}
	for k := range meanwhile { // newer than what was read
		if have, ok := d.rules[k]; ok {
			o.rules[k] = have
		} else {
			delete(o.rules, k)
		}
	}
	d.rules = o.rules
	return o.objects, nil
}

func (d *Driver) read(ctx context.Context) (tables [2]saved, sheltered [2]bool, err error) {
	for _, f := range d.table.Families() {
		text, err := d.table.Read(ctx, f)
		if err != nil {
			return tables, sheltered, err
		}
		if tables[f], err = parse(text, watched); err != nil {
			return tables, sheltered, fmt.Errorf("%s: %w", f, err)
		}
		if sheltered[f], err = hasShelter(f); err != nil {
			return tables, sheltered, err
		}
	}
	return tables, sheltered, nil
}

// observation turns what was read into objects.
type observation struct {
	driver  *Driver
	objects map[Key]Value
	rules   map[Key]installed
}

func (o *observation) table(f model.Family, s saved) {
	for _, name := range append(entryChains[:len(entryChains):len(entryChains)], fixedChains...) {
		if s.chains[name] {
			o.objects[Key{Kind: KindChain, Family: f, Chain: name}] = Value{}
		}
	}
	for _, r := range s.rules {
		switch {
		case isEntryChain(r.chain):
			o.entry(f, r)
		case jumps[r.chain] != "":
			o.jump(f, r)
		default:
			k := Key{Kind: KindChain, Family: f, Chain: r.chain}
			if !r.known {
				r.rule = Rule{Comment: r.text, Jump: "?"}
			}
			v := o.objects[k]
			v.Rules = append(v.Rules, r.rule)
			o.objects[k] = v
		}
	}
}

func (o *observation) entry(f model.Family, r savedRule) {
	k, to, port, ok := entryOf(f, r.chain, r.rule)
	if _, twice := o.rules[k]; !r.known || !ok || twice {
		o.alien(f, r)
		return
	}
	have := installed{text: r.text}
	if to.Do == ToRelay {
		have.relay = to.Relay
		if !o.driver.leadsTo(to.Relay, port) {
			to.Do = unknown
		}
	}
	o.rules[k], o.objects[k] = have, Value{To: to}
}

// leadsTo reports whether a relay listens on a port, or will: where it was in an
// earlier run.
func (d *Driver) leadsTo(id RelayID, port uint16) bool {
	if r := d.relays[id]; r != nil {
		return r.Addr().Port() == port
	}
	if d.ports[id] == 0 {
		d.ports[id] = port
	}
	return d.ports[id] == port
}

// jump is about rules in chains that are not ours: only those that lead to ours
// are looked at.
func (o *observation) jump(f model.Family, r savedRule) {
	k := Key{Kind: KindJump, Family: f, Chain: r.chain}
	switch r.rule.Jump {
	case chainIn, chainOut:
	case chainLast:
		k.Rest = last
	default:
		return
	}
	if _, twice := o.rules[k]; twice || !r.known || r.rule != jumpRule(k) {
		o.alien(f, r)
		return
	}
	o.rules[k], o.objects[k] = installed{text: r.text}, Value{Rules: []Rule{r.rule}}
}

func (o *observation) alien(f model.Family, r savedRule) {
	k := Key{Kind: KindAlien, Family: f, Chain: r.chain, Rest: r.text}
	for n := 2; ; n++ { // equal rules
		if _, taken := o.rules[k]; !taken {
			break
		}
		k.Rest = fmt.Sprintf("%s (%d)", r.text, n)
	}
	o.rules[k], o.objects[k] = installed{text: r.text}, Value{}
}

func shelterPort(f model.Family, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(Shelter(f), port)
}
