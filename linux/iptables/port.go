// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// portCompiler compiles one port.
type portCompiler struct {
	branches *branchCache
	host     *model.Host
	port     *model.Port
	emit     func(Key, Value)
	name     string       // as in comments
	hash     string       // as in names of chains
	pods     xtables.Rule // see podMatch
	gaps     []model.Gap

	pools     []*poolChain
	externals []*externalChain
}

// poolChain is a chain that balances over a pool.
type poolChain struct {
	pool       *model.Pool
	name       string
	masquerade []xtables.Rule // what is masqueraded of what goes to cluster IPs
	used       bool
}

// externalChain is a chain that gives each origin its answer.
type externalChain struct {
	on   [model.Origins]model.Action
	name string
}

func (p *portCompiler) gap(f *model.Frontend, detail string) {
	p.gaps = append(p.gaps, model.Gap{Frontend: f.At, Detail: detail})
}

func (p *portCompiler) chain(t xtables.Table, name string) chainID {
	return chainID{Family: p.port.ID.Family, Table: t, Chain: name}
}

// namePools gives the port's pools their chains: KUBE-SVL- to the one that
// clients from outside are kept to where others are not, or that is said to be
// this node's; KUBE-SVC- to the other. It is about names alone.
func (p *portCompiler) namePools() {
	pools := p.port.Pools()
	local := -1
	for i, pool := range pools {
		for j := range p.port.Frontends {
			on := &p.port.Frontends[j].On
			kept := on[model.FromOutside].Pool == pool && on[model.FromHost].Pool != pool && on[model.FromHost].Pool != nil
			for _, act := range on {
				if kept || act.Pool == pool && act.Why == model.WhyLocalEndpoints {
					local = i
				}
			}
		}
	}
	for i, pool := range pools {
		prefix := prefixCluster
		if i == local {
			prefix = prefixLocal
		}
		name := prefix + p.hash
		if slices.ContainsFunc(p.pools, func(c *poolChain) bool { return c.name == name }) {
			name = prefix + hash(p.hash, name, string(rune('0'+i))) // a third pool: no policy makes one
		}
		p.pools = append(p.pools, &poolChain{pool: pool, name: name})
	}
}

// usePool returns the chain of a pool, and remembers that it is needed.
func (p *portCompiler) usePool(pool *model.Pool) *poolChain {
	i := slices.IndexFunc(p.pools, func(c *poolChain) bool { return c.pool == pool })
	p.pools[i].used = true
	return p.pools[i]
}

// sorted returns a pool's endpoints by address: their order in a chain is of no
// meaning, and so it survives a restart.
func sorted(pool *model.Pool) []model.Endpoint {
	es := slices.Clone(pool.Endpoints)
	slices.SortFunc(es, func(a, b model.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return es
}

// isNodePort reports whether a frontend stands for all addresses of the host.
func isNodePort(f *model.Frontend) bool { return f.Kind == model.KindNodePort }

// match matches what is sent to a frontend.
func (p *portCompiler) match(f *model.Frontend) xtables.Rule {
	r := xtables.Rule{Proto: p.port.ID.Proto, Ports: xtables.Port(f.At.Port())}
	if !isNodePort(f) {
		r.Dst = xtables.Address(f.At.Addr())
	}
	return r
}

// leaf emits the branches to a frontend in a tree, and returns the leaf.
func (p *portCompiler) leaf(t tree, f *model.Frontend) chainID {
	if isNodePort(f) {
		return t.byPort(p.port.ID.Family, p.port.ID.Proto, f.At.Port(), p.emit)
	}
	return t.byAddress(f.At.Addr(), p.branches, p.emit)
}

// dispatchTree is where the nat table looks up a frontend.
func dispatchTree(f *model.Frontend) tree {
	if isNodePort(f) {
		return portTree
	}
	return vipTree
}

func balances(a model.Action) bool { return a.Verdict == model.Balance }

// comment names a frontend in its rules.
func (p *portCompiler) comment(f *model.Frontend) string {
	if isNodePort(f) {
		return p.name
	}
	return p.name + " " + [...]string{"cluster IP", "external IP", "loadbalancer IP"}[f.Kind]
}

// rejectTree is where the filter table rejects a frontend's clients.
func rejectTree(f *model.Frontend) tree {
	switch f.Kind {
	case model.KindClusterIP:
		return clusterTree
	case model.KindNodePort:
		return unservedTree
	}
	return externalTree
}

// podMatch matches packets of this node's pods. It matches nothing in particular
// where they cannot be told, or where everybody is one: see actions.
func podMatch(f model.Family, pods model.PodMatch) xtables.Rule {
	arriving, _ := xtables.FromPods(f, pods)
	if len(arriving) == 0 {
		return xtables.Rule{}
	}
	return arriving[0] // there is one a family
}

// matchesAll reports whether a match of pods matches every packet.
func matchesAll(r xtables.Rule) bool { return !r.Src.Prefix.IsValid() && r.In.Name == "" }

// markMasq marks packets to be masqueraded.
var markMasq = xtables.Jump{Chain: chainMark}

// actions returns a frontend's actions, with those of origins that no packet has
// replaced by those that count for it.
func (p *portCompiler) actions(f *model.Frontend) [model.Origins]model.Action {
	on := f.On
	if p.host.Pods.Known(p.port.ID.Family) && matchesAll(p.pods) { // the prefix of all addresses
		on[model.FromHost], on[model.FromOutside] = on[model.FromPod], on[model.FromPod]
	}
	return on
}

// origins are matches of where packets are from, in the order in which they must
// be asked for: pods come first, and who is neither pod nor host is outside.
func (p *portCompiler) origins() func(func(model.Origin, xtables.Rule) bool) {
	return func(yield func(model.Origin, xtables.Rule) bool) {
		if pod := p.pods; !matchesAll(pod) && !yield(model.FromPod, pod) {
			return
		}
		if yield(model.FromHost, xtables.Rule{Matches: []xtables.Match{xtables.SrcLocal{}}}) {
			yield(model.FromOutside, xtables.Rule{})
		}
	}
}
