// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

// markBits are the fwmark bits that this mode uses, all near the user's masquerade bit:
//
//	masquerade  the endpoint sees this host's address
//	service     for a frontend: delivered to this host, where IPVS forwards it
//	denied      with masquerade dropped, else rejected
//	number      which virtual server by mark
//
// For bit 14 they are 0x4000, 0x2000, 0x1000 and 0x0fff, which do not overlap those
// of Calico (0xffff0000), kubelet (0x8000) and Tailscale (0xff0000).
type markBits struct {
	masquerade, service, denied uint32
	shift                       int // of the number
}

// maxNumber is how many virtual servers by mark a family can have with SNAT, and as many without. A namespace gets
// a number while it has no more than are free: one alone gets half of them at most, two a third each. A port
// without a number fails, and its packets reach the virtual server by address.
const maxNumber = 1<<numberBits - 1

const numberBits = 12

// bitsFor returns the bits for the user's masquerade bit: below it, or above it if
// there is no room below.
func bitsFor(masquerade uint32) markBits {
	masquerade = cmp.Or(masquerade, config.DefaultMark)
	if masquerade >= 1<<(numberBits+2) {
		return markBits{masquerade, masquerade >> 1, masquerade >> 2, 0}
	}
	return markBits{masquerade, masquerade << 1, masquerade << 2, bits.Len32(masquerade) + 2}
}

// all are the bits that are cleared on every packet first.
func (b markBits) all() uint32 { return b.masquerade | b.service | b.denied }

// numberMask are the bits of the number.
func (b markBits) numberMask() uint32 { return maxNumber << b.shift }

// fwmark is the mark of packets for a virtual server by mark.
func (b markBits) fwmark(number uint32, via Via) uint32 {
	mark := number<<b.shift | b.service
	if via == ByMarkSNAT {
		mark |= b.masquerade
	}
	return mark
}

// parse is the reverse of fwmark; the number is 0 if fwmark would not return this
// mark.
func (b markBits) parse(fwmark uint32) (number uint32, via Via) {
	if fwmark&^(b.numberMask()|b.masquerade) != b.service {
		return 0, 0
	}
	via = ByMark
	if fwmark&b.masquerade != 0 {
		via = ByMarkSNAT
	}
	return fwmark & b.numberMask() >> b.shift, via
}

// snatByChain keeps the masquerade bit as the chains have set it: for all but this
// node's pods.
func (b markBits) snatByChain() Mark { return Mark{b.service, b.service | b.denied} }

// byAddress sends packets to the virtual server by address.
func (b markBits) byAddress(snat bool) Mark {
	if snat {
		return Mark{b.service | b.masquerade, b.all()}
	}
	return Mark{b.service, b.all()}
}

// deny drops or rejects packets.
func (b markBits) deny(v model.Verdict) Mark {
	if v == model.Drop {
		return Mark{b.all(), b.all()}
	}
	return Mark{b.service | b.denied, b.all()}
}

// byMark sends packets to a virtual server by mark: the mark is its number.
// IPVS compares the whole mark, so all other bits are cleared.
func (b markBits) byMark(snat bool) Mark {
	return Mark{b.byAddress(snat).Value, ^uint32(0)}
}

// fwmarks assigns numbers to virtual servers by fwmark: in each family those with SNAT have
// their own, and so have those without. It is safe for concurrent use.
type fwmarks struct {
	markBits

	mu    sync.Mutex
	marks map[Key]held
	used  [2]map[uint32]Key // by family, then fwmark
	last  [2]uint32         // the number that was assigned last
	taken [2]taken
}

// held is the fwmark of a virtual server, and its namespace (Value.tenant).
type held struct{ fwmark, tenant uint32 }

// taken counts the fwmarks of a family that are in use.
type taken struct {
	marks   [2]int            // without SNAT, and with
	tenants [2]map[uint32]int // of these, by namespace
	numbers int               // with SNAT, without, or both
}

// errNoNumber is why a virtual server by fwmark is missing: this node's own clients then reach the endpoints
// for clients from outside, which are others or none.
var errNoNumber = fmt.Errorf("no fwmark for its virtual server: none of the %d of its IP family is free, or its namespace has more than are free; "+
	"clients on this node reach only the endpoints for clients from outside; "+
	"use fewer Services with externalTrafficPolicy Local, or mode nftables", maxNumber)

func newFWMarks(b markBits) *fwmarks {
	m := &fwmarks{markBits: b, marks: map[Key]held{}, used: [2]map[uint32]Key{model.IPv4: {}, model.IPv6: {}}}
	for f := range m.taken {
		m.taken[f].tenants = [2]map[uint32]int{{}, {}}
	}
	return m
}

// fwmarksOf assigns numbers to the virtual servers by fwmark of a set of objects, in order, also to servers that
// only destinations or entries of the set refer to.
func fwmarksOf(b markBits, objects map[Key]Value) *fwmarks {
	m, servers := newFWMarks(b), map[Key]struct{}{}
	for k, v := range objects {
		switch {
		case k.Kind == kindServer:
			servers[k] = struct{}{}
		case k.Kind == kindDest:
			servers[k.serverOf()] = struct{}{}
		case k.Kind == kindEntry && v.Via != ByAddress:
			servers[v.markedServer(k)] = struct{}{}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(servers), compareKeys) {
		_ = m.assign(k, objects[k].tenant()) // a plan may have more than there are numbers
	}
	return m
}

// assign gives a virtual server by fwmark of a namespace a number, if it has none.
func (m *fwmarks) assign(server Key, tenant uint32) error {
	if server.Via == ByAddress || server.Via == Orphan {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.marks[server]
	if !ok {
		return m.allocate(server, tenant)
	}
	m.free(server)
	m.bind(server, held{h.fwmark, tenant})
	return nil
}

// id is IPVS' name of a virtual server; false for one by fwmark that has no number.
func (m *fwmarks) id(server Key) (id virtualserver.ID, ok bool) {
	switch server.Via {
	case ByAddress:
		return virtualserver.ID{Family: server.Family, Proto: server.Proto, Addr: server.Dst}, true
	case Orphan:
		return virtualserver.ID{Family: server.Family, FWMark: server.Mark}, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.marks[server]
	return virtualserver.ID{Family: server.Family, FWMark: h.fwmark}, ok
}

// server is the reverse of id; false for a mark that no server has.
func (m *fwmarks) server(id virtualserver.ID) (Key, bool) {
	if id.FWMark == 0 {
		return Key{Kind: kindServer, Family: id.Family, Proto: id.Proto, Dst: id.Addr}, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k, known := m.used[id.Family][id.FWMark]
	return k, known && k.Via != Orphan
}

// allocate assigns a number that no server has or, if there is none left, one that only a
// server of the other Via has: earlier versions of Tandem do not tell these two apart. It searches only if
// a number is free: a Service without one may have thousands of ops.
func (m *fwmarks) allocate(server Key, tenant uint32) error {
	used, last, taken := m.used[server.Family], &m.last[server.Family], &m.taken[server.Family]
	snat := m.snat(m.fwmark(0, server.Via))
	if free := maxNumber - taken.marks[snat]; free == 0 || taken.tenants[snat][tenant] > free {
		return errNoNumber
	}
	shared := taken.numbers == maxNumber
	for {
		*last = *last%maxNumber + 1
		fwmark := m.fwmark(*last, server.Via)
		if used[fwmark] == (Key{}) && (shared || used[fwmark^m.masquerade] == (Key{})) {
			m.bind(server, held{fwmark, tenant})
			return nil
		}
	}
}

func (m *fwmarks) bind(server Key, h held) {
	m.marks[server] = h
	m.used[server.Family][h.fwmark] = server
	m.count(server.Family, h, 1)
}

// count counts a mark that came into use, or is free again.
func (m *fwmarks) count(f model.Family, h held, by int) {
	taken, snat := &m.taken[f], m.snat(h.fwmark)
	taken.marks[snat] += by
	if taken.tenants[snat][h.tenant] += by; taken.tenants[snat][h.tenant] == 0 {
		delete(taken.tenants[snat], h.tenant)
	}
	if m.used[f][h.fwmark^m.masquerade] == (Key{}) {
		taken.numbers += by
	}
}

// snat is 1 for the mark of a server with SNAT, else 0.
func (m *fwmarks) snat(fwmark uint32) int {
	if fwmark&m.masquerade != 0 {
		return 1
	}
	return 0
}

// observed records the fwmark of a server that was read back, unless a concurrent Commit has
// given the server a fwmark, or this fwmark to a server. belongs records the namespace.
func (m *fwmarks) observed(server Key, fwmark uint32) {
	if number, _ := m.parse(fwmark); number == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, has := m.marks[server]
	_, taken := m.used[server.Family][fwmark]
	if !has && !taken {
		m.bind(server, held{fwmark: fwmark})
	}
}

// belongs records the namespace of a server that was read back.
func (m *fwmarks) belongs(server Key, tenant uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h, ok := m.marks[server]; ok && h.tenant == 0 {
		m.free(server)
		m.bind(server, held{h.fwmark, tenant})
	}
}

// orphans reserves the numbers of the orphans that were read back, and frees those of earlier
// ones: a server that got the number of an orphan would be deleted with it.
func (m *fwmarks) orphans(found []Key) {
	m.mu.Lock()
	for k := range m.marks {
		if k.Via == Orphan && !slices.Contains(found, k) {
			m.free(k)
		}
	}
	m.mu.Unlock()
	for _, k := range found {
		m.observed(k, k.Mark)
	}
}

// release frees the number of a deleted server.
func (m *fwmarks) release(server Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free(server)
}

func (m *fwmarks) free(server Key) {
	if h, ok := m.marks[server]; ok {
		delete(m.marks, server)
		delete(m.used[server.Family], h.fwmark)
		m.count(server.Family, h, -1)
	}
}

// entry is the mark of an entry, including its server's number.
func (m *fwmarks) entry(k Key, v Value) (Mark, error) {
	if v.Via == ByAddress {
		return v.Mark, nil
	}
	id, ok := m.id(v.markedServer(k))
	if !ok {
		return Mark{Mask: v.Mark.Mask}, errNoNumber
	}
	return Mark{id.FWMark, v.Mark.Mask}, nil
}

// markedServer is the virtual server by fwmark that the mark of an entry leads to.
func (v Value) markedServer(entry Key) Key {
	return Key{Kind: kindServer, Family: entry.Family, Proto: entry.Proto, Via: v.Via, Dst: v.ByMark}
}
