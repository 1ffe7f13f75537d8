// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// snapshot collects the objects of one family's table from a dump. Elements are
// passed on to found as they are read. It only parses; messages may come in any
// order.
type snapshot struct {
	table    *Table
	family   model.Family
	found    func(Key, Value)
	objects  map[Key]Value
	hooks    map[string]Hook
	rules    map[string][]uint64   // digests, in order
	ranges   map[*Set][]rawElement // of the sets of ranges
	chains   map[string]lead       // by name, which thousands of elements share
	counts   map[*Set]int          // numbers of elements, if the kernel reports them (Linux 6.17)
	many     int                   // a set with more elements may be read by its keys
	numbered map[*Set][]numbered   // elements of such sets that those read so far lead to
	damage   bool                  // the table must be re-created
	hasTable bool
	foreign  bool // the table is not owned

	counters func(*Set, rawElement) // if not nil, called for elements with a counter instead of found
}

func newSnapshot(t *Table, f model.Family, found func(Key, Value)) *snapshot {
	return &snapshot{
		table: t, family: f, found: found, objects: map[Key]Value{}, hooks: map[string]Hook{},
		rules: map[string][]uint64{}, chains: map[string]lead{}, ranges: map[*Set][]rawElement{},
		counts: map[*Set]int{}, many: math.MaxInt, numbered: map[*Set][]numbered{},
	}
}

// part returns a snapshot for reading elements of s in another goroutine; see join.
func (s *snapshot) part(found func(Key, Value)) *snapshot {
	p := newSnapshot(s.table, s.family, found)
	p.counts, p.many = s.counts, s.many // shared for reading
	return p
}

// join adds the elements that a part has collected.
func (s *snapshot) join(p *snapshot) {
	for set, raw := range p.ranges {
		s.ranges[set] = append(s.ranges[set], raw...)
	}
	for set, all := range p.numbered {
		s.numbered[set] = append(s.numbered[set], all...)
	}
}

// lead is a chain's name, and the elements that it looks up (Leads).
type lead struct {
	name  string
	set   *Set
	first uint16
	n     int
}

// numbered are n elements of a set with consecutive numbers, the first of which is key.
type numbered struct {
	key Key
	n   int
}

// Decode calls found for the objects of a family's table in a dump of the kernel. A
// malformed message ends it.
func (t *Table) Decode(f model.Family, dump []byte, found func(Key, Value)) {
	s := newSnapshot(t, f, found)
	for m, err := range netlink.Messages(dump) {
		if err != nil {
			break
		}
		_ = s.add(m) // there is no error
	}
	s.finish()
}

// add reads one message. Those of other tables are skipped. The error is always nil.
func (s *snapshot) add(m netlink.Message) error {
	if m.Family() != netlink.FamilyOf(s.family) {
		return nil
	}
	switch messageOf(m) {
	case msgNewTable:
		s.addTable(m)
	case msgNewChain:
		s.chain(m)
	case msgNewRule:
		s.rule(m)
	case msgNewSet:
		s.set(m)
	case msgNewSetElem:
		s.elements(m)
	}
	return nil
}

func (s *snapshot) addTable(m netlink.Message) {
	name, comment, flags := parseTable(m)
	if name != s.table.Name {
		return
	}
	s.hasTable = true
	s.foreign = !strings.HasPrefix(comment, s.table.Owner)
	// A flag such as dormant disables the rules.
	s.damage = s.damage || flags != s.table.flags || comment != s.table.Comment
	s.objects[TableKey(s.family)] = Value{Body: &Body{Comment: comment}}
}

func parseTable(m netlink.Message) (name, comment string, flags uint32) {
	for kind, v := range m.Attrs() {
		switch kind {
		case attrTable:
			name = netlink.Text(v)
		case attrTableFlags:
			flags = netlink.Uint32(v)
		case attrTableUserdata:
			comment = netlink.Text(note(v, noteComment))
		}
	}
	return name, comment, flags
}

func (s *snapshot) chain(m netlink.Message) {
	var table, name string
	var h Hook
	var flags uint32
	for kind, v := range m.Attrs() {
		switch kind {
		case attrTable:
			table = netlink.Text(v)
		case attrChainName:
			name = netlink.Text(v)
		case attrChainHook:
			h.parse(v)
		case attrChainPolicy:
			h.Policy = netlink.Uint32(v)
		case attrChainType:
			h.Type = netlink.Text(v)
		case attrChainFlags:
			flags = netlink.Uint32(v)
		}
	}
	if table == s.table.Name && flags&chainBinding == 0 {
		s.hooks[name] = h
	}
}

func (h *Hook) parse(b []byte) {
	for kind, v := range netlink.Attrs(b) {
		switch kind {
		case attrHookPoint:
			h.Point = Point(netlink.Uint32(v))
		case attrHookPriority:
			h.Priority = int32(netlink.Uint32(v))
		}
	}
}

func (s *snapshot) rule(m netlink.Message) {
	var table, chain string
	var digest uint64
	for kind, v := range m.Attrs() {
		switch kind {
		case attrTable:
			table = netlink.Text(v)
		case attrRuleChain:
			chain = netlink.Text(v)
		case attrRuleUserdata:
			digest = ruleDigest(v)
		}
	}
	if table == s.table.Name {
		s.rules[chain] = append(s.rules[chain], digest)
	}
}

func (s *snapshot) set(m netlink.Message) {
	var table, name string
	var sh shape
	count := 0
	for kind, v := range m.Attrs() {
		switch kind {
		case attrTable:
			table = netlink.Text(v)
		case attrSetCount:
			count = int(netlink.Uint32(v))
		case attrSetName:
			name = netlink.Text(v)
		case attrSetFlags:
			sh.flags = netlink.Uint32(v)
		case attrSetKeyType:
			sh.keyType = netlink.Uint32(v)
		case attrSetKeyLen:
			sh.keyLen = netlink.Uint32(v)
		case attrSetDataType:
			sh.dataType = netlink.Uint32(v)
		case attrSetDataLen:
			sh.dataLen = netlink.Uint32(v)
		case attrSetDesc:
			for kind, v := range netlink.Attrs(v) {
				if kind == attrDescSize {
					sh.size = netlink.Uint32(v)
				}
			}
		}
	}
	if table != s.table.Name || sh.flags&setAnonymous != 0 {
		return
	}
	if known := s.table.named[name]; known != nil {
		s.damage = s.damage || sh != shapeOf(s.family, known)
		s.counts[known] = count
	}
	s.objects[SetKey(s.family, name)] = Value{Body: &Body{Set: sh}}
}

func (s *snapshot) elements(m netlink.Message) {
	owned := false
	var set *Set
	for kind, v := range m.Attrs() {
		switch kind { // most elements come in a message of their own: no allocation
		case attrTable:
			owned = string(netlink.TextBytes(v)) == s.table.Name
		case attrElementsSet:
			set = s.table.named[string(netlink.TextBytes(v))]
		case attrElementsList:
			if !owned || set == nil {
				return
			}
			for _, elem := range netlink.Attrs(v) {
				if set.Dynamic() {
					continue
				}
				if e := parseElement(elem); s.counters == nil {
					s.element(set, e)
				} else if e.counts {
					s.counters(set, e)
				}
			}
		}
	}
}

func (s *snapshot) element(set *Set, e rawElement) {
	if set.ranges() {
		// The reader reuses its buffer.
		e.key, e.keyEnd, e.userdata, e.data, e.chain = bytes.Clone(e.key), bytes.Clone(e.keyEnd), nil, nil, nil
		s.ranges[set] = append(s.ranges[set], e)
		return
	}
	k, v, ok := e.parse(s.family, set)
	if !ok {
		s.found(e.foreign(s.family, set), Value{})
		return
	}
	if v.Body != nil && v.Body.Goto != "" {
		to := s.lead(v.Body.Goto)
		v.Body.Goto = to.name
		if to.n > 0 && s.counts[to.set] > s.many {
			first := k
			first.Set, first.Slot = to.set, to.first
			s.numbered[to.set] = append(s.numbered[to.set], numbered{first, to.n})
		}
	}
	s.found(k, v)
}

// lead returns a chain's lead, computed once.
func (s *snapshot) lead(chain string) lead {
	known, ok := s.chains[chain]
	if !ok {
		known.name = chain
		if s.table.leads != nil {
			known.set, known.first, known.n = s.table.leads(chain)
		}
		s.chains[chain] = known
	}
	return known
}

// finish calls found for all objects but single elements. For a table that cannot be repaired
// in place it reports the table only, as drift: its replacement re-creates everything.
func (s *snapshot) finish() {
	if !s.hasTable {
		return
	}
	if s.damage {
		s.found(TableKey(s.family), Value{Body: &Body{Comment: "damaged or of another version"}})
		return
	}
	for name, h := range s.hooks {
		c := &Chain{Hook: h, Digest: chainDigest(h, s.rules[name])}
		if slices.Contains(s.rules[name], 0) {
			c.Digest = 0 // a rule that Tandem did not write
		}
		s.objects[ChainKey(s.family, name)] = Value{Body: &Body{Chain: c}}
	}
	for k, v := range s.objects {
		s.found(k, v)
	}
	for set, raw := range s.ranges {
		ranges(s.family, set, raw, s.found)
	}
}

// rawElement is an element as dumped.
type rawElement struct {
	key, keyEnd, userdata []byte
	data                  []byte // NFTA_DATA_VALUE
	code                  uint32
	chain                 []byte
	hasVerdict            bool
	end                   bool
	strange               bool // it has an attribute that Tandem never writes
	counts                bool
	count                 Count
}

func parseElement(b []byte) (e rawElement) {
	for kind, v := range netlink.Attrs(b) {
		switch kind {
		case elemKey:
			e.key = constant(v)
		case elemKeyEnd:
			e.keyEnd = constant(v)
		case elemUserdata:
			e.userdata = v
		case elemFlags:
			e.end = netlink.Uint32(v)&elemIntervalEnd != 0
			e.strange = e.strange || netlink.Uint32(v)&^elemIntervalEnd != 0
		case elemData:
			e.dataAttrs(v)
		case elemExpr:
			e.count, e.counts = parseCounter(v)
			e.strange = e.strange || !e.counts
		case elemPad:
		default: // timeouts and others that we never write
			e.strange = true
		}
	}
	return e
}

func (e *rawElement) dataAttrs(b []byte) {
	for kind, v := range netlink.Attrs(b) {
		if kind == attrDataValue {
			e.data = v
			continue
		}
		e.hasVerdict = true
		for kind, v := range netlink.Attrs(v) {
			switch kind {
			case attrVerdictCode:
				e.code = netlink.Uint32(v)
			case attrVerdictChain:
				e.chain = netlink.TextBytes(v)
			}
		}
	}
}

// constant returns the bytes of a nested NFTA_DATA_VALUE.
func constant(b []byte) []byte {
	for kind, v := range netlink.Attrs(b) {
		if kind == attrDataValue {
			return v
		}
	}
	return nil
}

// foreign returns the key of an element that Tandem did not write: the attributes needed to
// delete it.
func (e rawElement) foreign(f model.Family, set *Set) Key {
	w := encoder{Writer: &netlink.Writer{}}
	if e.end {
		w.Uint32(elemFlags, elemIntervalEnd)
	}
	w.value(elemKey, e.key)
	if e.keyEnd != nil {
		w.value(elemKeyEnd, e.keyEnd)
	}
	return Key{Kind: KindForeign, Family: f, Set: set, Detail: detail(rawKey(w.Buf))}
}

// parse returns the object of an element; ok is false if Tandem cannot have written it.
func (e *rawElement) parse(f model.Family, set *Set) (k Key, v Value, ok bool) {
	if k, ok = e.keyOf(f, set); ok {
		v, ok = e.value(f, set)
	}
	return k, v, ok
}

// keyOf returns the key of an element; ok is false if Tandem cannot have written it.
func (e *rawElement) keyOf(f model.Family, set *Set) (k Key, ok bool) {
	k = Key{Kind: KindElement, Family: f, Set: set}
	if e.strange || e.counts && set.Data != DataVerdict && set.Data != DataEndpoint || len(e.key) != keyLen(f, set.Key) || !k.parseKey(e.key) {
		return k, false
	}
	if set.rangeBehind() {
		first := len(e.key) - addressLen(f)
		if len(e.keyEnd) != len(e.key) || string(e.keyEnd[:first]) != string(e.key[:first]) {
			return k, false
		}
		k = k.withRange(Range{addressOf(e.key[first:]), addressOf(e.keyEnd[first:])})
	}
	var scratch [64]byte // an audit does this for every element: no allocation
	// It must have exactly the bytes that Tandem would write.
	return k, slices.Equal(k.append(scratch[:0], false), e.key)
}

func (k *Key) parseKey(b []byte) bool {
	n := addressLen(k.Family)
	key := k.Set.Key
	for i, f := range key {
		size := (fieldLen(k.Family, f) + 3) &^ 3
		if len(key) == 1 {
			size = len(b)
		}
		part := b[:size]
		b = b[size:]
		switch f {
		case L4Proto:
			k.Proto = model.Proto(part[0])
		case Dport, Sport:
			k.Port = binary.BigEndian.Uint16(part)
		case Number:
			number := binary.NativeEndian.Uint32(part)
			if number > 0xffff {
				return false
			}
			k.Slot = uint16(number)
		default:
			if i == 0 {
				copy(k.Addr[:], part)
			} else if !k.Set.Interval && string(part) != string(k.Addr[:n]) {
				k.Detail = detail(addressOf(part))
			}
		}
	}
	return true
}

// to returns the address that an element leads to, if any; ok is false if Tandem cannot have written it.
func (e *rawElement) to(f model.Family, set *Set) (v Value, ok bool) {
	n := addressLen(f)
	switch set.Data {
	case DataEndpoint:
		if len(e.data) != n+4 {
			return v, false
		}
		copy(v.To[:], e.data[:n])
		v.Port = binary.BigEndian.Uint16(e.data[n:])
	case DataAddress:
		if len(e.data) != n {
			return v, false
		}
		copy(v.To[:], e.data)
	}
	return v, true
}

func (e *rawElement) value(f model.Family, set *Set) (v Value, ok bool) {
	if v, ok = e.to(f, set); !ok {
		return v, false
	}
	var counter *Count
	if e.counts {
		counter = new(Count)
		*counter = e.count
	}
	switch {
	case set.Data == DataVerdict:
		v.Body = &Body{Verdict: verdictOther, Counter: counter}
		switch {
		case e.hasVerdict && e.code == codeDrop:
			v.Body.Verdict = VerdictDrop
		case e.hasVerdict && e.code == codeGoto:
			v.Body.Verdict, v.Body.Goto = VerdictGoto, string(e.chain)
		}
	case counter != nil:
		v.Body = &Body{Counter: counter}
	}
	if c := comment(e.userdata); c != "" {
		if v.Body == nil {
			v.Body = &Body{}
		}
		v.Body.Comment = c
	}
	return v, true
}

// ranges pairs the elements of a set of ranges, which are beginnings and ends in any
// order. Elements without a counterpart are foreign.
func ranges(f model.Family, set *Set, raw []rawElement, put func(Key, Value)) {
	n := addressLen(f)
	slices.SortFunc(raw, func(a, b rawElement) int {
		if c := slices.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		}
		if a.end { // an end before a beginning at the same address
			return -1
		}
		return 1
	})
	for i := 0; i < len(raw); i++ {
		e := raw[i]
		switch {
		case e.strange || len(e.key) != n:
			put(e.foreign(f, set), Value{})
		case e.end: // nft itself writes one before the first range, without meaning
		case i+1 < len(raw) && raw[i+1].end && len(raw[i+1].key) == n:
			first := addressOf(e.key)
			put(AddrKey(set, first).withRange(Range{first, addressOf(raw[i+1].key).Prev()}), Value{})
			i++
		case i+1 == len(raw):
			first := addressOf(e.key)
			put(AddrKey(set, first).withRange(Range{first, model.Last(netip.PrefixFrom(first, 0))}), Value{})
		default:
			put(e.foreign(f, set), Value{})
		}
	}
}

// addressOf returns the address in 4 or 16 bytes.
func addressOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
