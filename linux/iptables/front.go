package iptables

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// front emits what leads to one front: in the nat table for whoever is balanced,
// in the filter table for all who are still on their way to the front's own
// address after that.
func (p *portCompiler) front(f *model.Frontend) {
	p.localhost(f)
	if f.Kind == model.KindClusterIP {
		// Whatever else is sent to a cluster IP: no Service has that port. The comment
		// is on the way there, once.
		at := p.leaf(clusterTree, f)
		emitLine(at, xtables.Rule{Dst: xtables.Address(f.At.Addr()), Target: xtables.Reject}, p.emit)
	}
	if f.Restricted && unspecified(f) {
		p.gap(f, "source ranges of node ports cannot be told apart in this mode: closed to all")
		r := p.to(f)
		r.Comment, r.Target = p.name+" has source ranges", xtables.Drop
		emitLine(p.leaf(closedTree, f), r, p.emit)
		return
	}
	p.balance(f)
	p.refuse(f)
}

// balance emits the rule of the nat table.
func (p *portCompiler) balance(f *model.Frontend) {
	on := p.actions(f)
	if !slices.ContainsFunc(on[:], balances) {
		return
	}
	r := p.to(f)
	switch chain := p.direct(f); {
	case chain != nil:
		r.Target = xtables.Jump{Chain: chain.name}
		if len(chain.masks) == 0 { // which tell the same
			r.Comment = p.comment(f)
		}
	case f.Restricted && len(f.Allow) == 0: // nobody gets there
		r.Comment = p.comment(f)
	default:
		r.Comment, r.Target = p.comment(f), xtables.Jump{Chain: p.external(on)}
	}
	if f.Restricted {
		r.Target = p.firewall(f, r.Target)
	}
	emitLine(p.leaf(dispatcher(f), f), r, p.emit)
}

// direct returns the chain of the one pool of a cluster IP, which all clients
// get; nil where that is not so. What must be masqueraded is marked there, known
// by the address it is for.
func (p *portCompiler) direct(f *model.Frontend) *poolChain {
	if f.Kind != model.KindClusterIP || f.Restricted {
		return nil
	}
	on := p.actions(f)
	for _, a := range on {
		if !balances(a) || a.Pool != on[0].Pool {
			return nil
		}
	}
	from, some, ok := p.masked(on)
	if !ok {
		return nil
	}
	chain := p.use(on[0].Pool)
	if some {
		r := p.to(f)
		r.Src, r.In = from.Src, from.In
		r.Target = markMasq
		chain.masks = append(chain.masks, r)
	}
	return chain
}

// masked returns the match of clients that are masqueraded. It is not ok where
// one match cannot tell them.
func (p *portCompiler) masked(on [model.Origins]model.Action) (from xtables.Rule, some, ok bool) {
	mask := on[model.FromOutside].SNAT
	switch {
	case on[model.FromHost].SNAT != mask:
		return xtables.Rule{}, false, false
	case on[model.FromPod].SNAT == mask:
		return xtables.Rule{}, mask, true
	}
	pod := p.pods()
	pod.Src.Not, pod.In.Not = mask && pod.Src.Prefix.IsValid(), mask && pod.In.Name != ""
	return pod, true, true
}

// refuse emits what the filter table does with those who are not balanced. Who
// is balanced has another destination by then. The last answer needs no match.
func (p *portCompiler) refuse(f *model.Frontend) {
	var rules []xtables.Rule
	on := p.actions(f)
	for o, from := range p.origins() {
		a := on[o]
		if balances(a) {
			continue
		}
		r := p.to(f)
		r.Src, r.In, r.Matches = from.Src, from.In, from.Matches
		r.Comment, r.Target = p.name+" has no endpoints", xtables.Reject
		if a.Verdict == model.Drop {
			r.Comment, r.Target = p.name+" has no local endpoints", xtables.Drop
		}
		rules = append(rules, r)
	}
	for len(rules) > 1 && rules[len(rules)-1].Target == rules[len(rules)-2].Target {
		rules = slices.Delete(rules, len(rules)-2, len(rules)-1)
	}
	if n := len(rules); n > 0 {
		last := &rules[n-1]
		last.Src, last.In, last.Matches = xtables.Addrs{}, xtables.Interface{}, nil
	}
	if f.Restricted {
		p.guard(f, len(rules) > 0)
	}
	for _, r := range rules {
		emitLine(p.leaf(refusals(f), f), r, p.emit)
	}
}
