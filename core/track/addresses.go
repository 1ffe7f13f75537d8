// SPDX-License-Identifier: Apache-2.0

package track

import (
	"iter"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// sliceTable has all EndpointSlices, by name and by the addresses of their endpoints. Slices
// have numbers, so that an address costs 4 bytes beside its own: the number of the only slice
// that has it, as of most. What a change costs is what differs between two versions of a slice.
type sliceTable struct {
	numbers map[model.SliceName]ref
	slices  []*model.Slice // by number; the first one is none
	unused  []ref          // numbers

	v4    map[[4]byte]ref // nil until they are asked for, after Resume
	v6    map[[16]byte]ref
	links []link
	spare []ref                        // links
	large map[netip.Addr]map[ref]int32 // slices and how often each has it, of addresses that more than manyLinks have

	moved func(netip.Addr) // is called for each address that a slice gets or loses
}

// ref is a list of slices: 0 for none, the number of the only or last one, or that of a link with
// the bit that says so.
type ref uint32

const isLink ref = 1 << 31

// manyLinks is how many slices are in a list: to take one out, all before it are looked at, and any number of slices
// may have the same address.
const manyLinks = 32

// link is a slice of a list, and the others.
type link struct{ slice, others ref }

func newSliceTable() sliceTable {
	return sliceTable{
		numbers: map[model.SliceName]ref{}, slices: make([]*model.Slice, 1),
		v4: map[[4]byte]ref{}, v6: map[[16]byte]ref{},
	}
}

// get returns the slice of a name, or nil.
func (x *sliceTable) get(name model.SliceName) *model.Slice { return x.slices[x.numbers[name]] }

// set adds or replaces a slice, and returns the one before.
func (x *sliceTable) set(now *model.Slice) (before *model.Slice) {
	n := x.numbers[now.Name]
	if n == 0 {
		if last := len(x.unused) - 1; last >= 0 {
			n, x.unused = x.unused[last], x.unused[:last]
		} else {
			n = ref(len(x.slices))
			x.slices = append(x.slices, nil)
		}
		x.numbers[now.Name] = n
	}
	before, x.slices[n] = x.slices[n], now
	x.change(n, before, now)
	return before
}

// remove removes a slice, and returns it, if there is one.
func (x *sliceTable) remove(name model.SliceName) (before *model.Slice) {
	n := x.numbers[name]
	if n == 0 {
		return nil
	}
	before = x.slices[n]
	x.change(n, before, nil)
	delete(x.numbers, name)
	x.slices[n], x.unused = nil, append(x.unused, n)
	return before
}

// change enters what one version of a slice has and another has not. Either may be nil. Endpoints
// mostly come and go one at a time, while the others keep their order.
func (x *sliceTable) change(n ref, before, now *model.Slice) {
	if x.v4 == nil {
		return
	}
	var old, all []model.SliceEndpoint
	if before != nil {
		old = before.Endpoints
	}
	if now != nil {
		all = now.Endpoints
	}
	for len(old)+len(all) > 0 {
		switch {
		case len(old) > 0 && len(all) > 0 && old[0].Addr == all[0].Addr:
			old, all = old[1:], all[1:]
		case len(all) == 0 || len(old) > 1 && old[1].Addr == all[0].Addr:
			x.edit(old[0].Addr, n, -1)
			old = old[1:]
		default:
			x.edit(all[0].Addr, n, 1)
			if all = all[1:]; len(old) > 0 && (len(all) == 0 || old[0].Addr != all[0].Addr) {
				x.edit(old[0].Addr, n, -1)
				old = old[1:]
			}
		}
	}
}

// edit enters a slice once more among those of an address (1), or once less (-1).
func (x *sliceTable) edit(a netip.Addr, n ref, more int32) {
	if x.moved != nil {
		x.moved(a)
	}
	if all := x.large[a]; all != nil {
		if all[n] += more; all[n] == 0 {
			if delete(all, n); len(all) == 0 {
				delete(x.large, a)
			}
		}
		return
	}
	all := x.list(a)
	if more < 0 {
		all = x.without(all, n)
	} else if all = x.with(all, n); x.isLong(all) {
		counts := map[ref]int32{}
		for all != 0 {
			last := all
			if all&isLink != 0 {
				last = x.links[all&^isLink].slice
			}
			counts[last]++
			all = x.without(all, last)
		}
		if x.large == nil {
			x.large = map[netip.Addr]map[ref]int32{}
		}
		x.large[a] = counts
	}
	switch {
	case a.Is4() && all == 0:
		delete(x.v4, a.As4())
	case a.Is4():
		x.v4[a.As4()] = all
	case all == 0:
		delete(x.v6, a.As16())
	default:
		x.v6[a.As16()] = all
	}
}

// list returns the list of an address that few slices have.
func (x *sliceTable) list(a netip.Addr) ref {
	if a.Is4() {
		return x.v4[a.As4()]
	}
	return x.v6[a.As16()]
}

// isLong reports whether a list has more than manyLinks.
func (x *sliceTable) isLong(all ref) bool {
	n := 0
	for ; all&isLink != 0 && n < manyLinks; n++ {
		all = x.links[all&^isLink].others
	}
	return all&isLink != 0
}

// with returns a list and one slice more.
func (x *sliceTable) with(all, n ref) ref {
	if all == 0 {
		return n
	}
	if last := len(x.spare) - 1; last >= 0 {
		i := x.spare[last]
		x.spare, x.links[i] = x.spare[:last], link{n, all}
		return i | isLink
	}
	x.links = append(x.links, link{n, all})
	return ref(len(x.links)-1) | isLink
}

// without returns a list without a slice, of which it takes one away where it is there twice.
func (x *sliceTable) without(all, n ref) ref {
	at, before := &all, (*ref)(nil)
	for *at&isLink != 0 {
		i := *at &^ isLink
		if x.links[i].slice == n {
			*at, x.spare = x.links[i].others, append(x.spare, i)
			return all
		}
		at, before = &x.links[i].others, at
	}
	switch {
	case *at != n:
	case before == nil:
		return 0
	default:
		i := *before &^ isLink
		*before, x.spare = x.links[i].slice, append(x.spare, i)
	}
	return all
}

// at ranges over the slices that have an endpoint at an address, in no order: a slice that
// has several may come up as often.
func (x *sliceTable) at(a netip.Addr) iter.Seq[*model.Slice] {
	x.index()
	var all ref
	if a.IsValid() {
		all = x.list(a)
	}
	return func(yield func(*model.Slice) bool) {
		for n := range x.large[a] {
			if !yield(x.slices[n]) {
				return
			}
		}
		for all&isLink != 0 {
			l := x.links[all&^isLink]
			if !yield(x.slices[l.slice]) {
				return
			}
			all = l.others
		}
		if all != 0 {
			yield(x.slices[all])
		}
	}
}

// putOff makes room for some slices, and enters their addresses when those are first asked for.
func (x *sliceTable) putOff(slices int) {
	x.numbers, x.v4, x.v6 = make(map[model.SliceName]ref, slices), nil, nil
}

// index enters the addresses of all slices, where that was put off.
func (x *sliceTable) index() {
	if x.v4 != nil {
		return
	}
	x.v4, x.v6, x.large = map[[4]byte]ref{}, map[[16]byte]ref{}, nil
	moved := x.moved
	defer func() { x.moved = moved }()
	x.moved = nil // no slice changes
	for n, slice := range x.slices {
		x.change(ref(n), nil, slice)
	}
}

// At ranges over the endpoints that have an address, of all Services, whatever their state, with the slice that
// each is in, in no order. It costs those slices, and nothing of others.
func (t *Tracker) At(a netip.Addr) iter.Seq2[*model.Slice, *model.SliceEndpoint] {
	return func(yield func(*model.Slice, *model.SliceEndpoint) bool) {
		var once model.Unique[*model.Slice]
		for slice := range t.slices.at(a) {
			if !once.Add(slice) {
				continue
			}
			for i := range slice.Endpoints {
				if e := &slice.Endpoints[i]; e.Addr == a && !yield(slice, e) {
					return
				}
			}
		}
	}
}
