// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"math"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// nftFound turns the objects of our tables into ours. A table whose sets or hooks
// are not as they should be is told alone: it is made anew.
func nftFound(have map[nft.Key]nft.Value) map[Key]found {
	put := map[Key]found{}
	for _, f := range model.Families() {
		known, right := nftKnown(f, have)
		table := Key{Kind: KindTable, Family: f}
		n, _ := nftTable.Object(f)
		if _, there := have[n]; !there {
			continue
		}
		if !right {
			put[table] = found{Value: Value{To: Target{Do: unknown}}}
			continue
		}
		for n, v := range have {
			if n.Family == f {
				nftOne(n, v, known, put)
			}
		}
	}
	return put
}

// nftKnown returns what the objects with fixed names are of ours, and whether
// those that cannot be mended in place are right.
func nftKnown(f model.Family, have map[nft.Key]nft.Value) (known map[nft.Key]Key, right bool) {
	known, right = map[nft.Key]Key{}, true
	table := Key{Kind: KindTable, Family: f}
	nftObjects(table, nil, func(n nft.Key, want nft.Value) {
		known[n] = table
		v, ok := have[n]
		right = right && ok && v.Equal(want)
	})
	chain := func(k Key) {
		nftObjects(k, nil, func(n nft.Key, want nft.Value) {
			known[n] = k
			v, ok := have[n]
			right = right && (!ok || v.Body.Chain.Hook == want.Body.Chain.Hook)
		})
	}
	for _, name := range ourChains() {
		chain(Key{Kind: KindChain, Family: f, Chain: name})
	}
	for name := range jumps {
		chain(Key{Kind: KindJump, Family: f, Chain: name})
		chain(Key{Kind: KindJump, Family: f, Chain: name, Late: true})
	}
	return known, right
}

// nftOne turns one object into one of ours.
func nftOne(n nft.Key, v nft.Value, known map[nft.Key]Key, put map[Key]found) {
	k, ok := known[n]
	switch {
	case ok && k.Kind == KindTable:
		put[k] = found{}
	case ok:
		// A chain with a rule of somebody else has no digest.
		put[k] = found{Value: Value{Digest: cmp.Or(v.Body.Chain.Digest, math.MaxUint64)}}
	case !nftEntryFound(n, v, put):
		k = Key{Kind: KindUnexpected, Family: n.Family, Chain: n.Set.String(), Rest: n.String()}
		put[k] = found{installed: installed{foreign: n}}
	}
}

// nftEntryFound puts an element that is an entry of ours.
func nftEntryFound(n nft.Key, v nft.Value, put map[Key]found) bool {
	e, ok := nft.EntryOf(n, v)
	if !ok {
		return false
	}
	chain, r := nftRule(e)
	k, to, port, ok := entryOf(n.Family, chain, r)
	if ok = ok && isEntryChain(chain); ok {
		put[k] = entryFound(to, port, installed{})
	}
	return ok
}
