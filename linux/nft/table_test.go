// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

var (
	portFields = []Field{Daddr, L4Proto, Dport}

	answers = &Set{Name: "answers", Key: portFields, Data: DataVerdict}
	numbers = &Set{Name: "numbers", Key: append(portFields[:3:3], Number), Data: DataEndpoint}
	pairs   = &Set{Name: "pairs", Key: []Field{Saddr, Daddr}}
	sources = &Set{Name: "sources", Key: append(portFields[:3:3], Saddr), Interval: true, Loads: []Field{Daddr, CtProto, Dport, Saddr}}
	places  = &Set{Name: "places", Key: []Field{Daddr}, Interval: true}
	clients = &Set{Name: "clients", Key: []Field{Saddr, Daddr, L4Proto}, Data: DataAddress, Size: 16}
)

func testTable() *Table {
	return NewTable("test", "a test", "a test (layout 1)", answers, numbers, pairs, sources, places, clients)
}

// testObjects are objects of every kind: a frontend at 10.0.0.1:80 with two endpoints,
// of which clients inside 192.0.2.0/24 get one.
func testObjects(t *Table, f model.Family) map[Key]Value {
	addr := func(v4, v6 string) netip.Addr {
		return netip.MustParseAddr([...]string{model.IPv4: v4, model.IPv6: v6}[f])
	}
	prefix := func(v4, v6 string) netip.Prefix {
		return netip.MustParsePrefix([...]string{model.IPv4: v4, model.IPv6: v6}[f])
	}
	at := netip.AddrPortFrom(addr("10.0.0.1", "fd00::1"), 80)
	objects := map[Key]Value{}
	emit := func(k Key, v Value) { objects[k] = v }
	emit(t.Object(f))
	for _, s := range t.Sets() {
		emit(SetObject(f, s))
	}
	emit(AddrPortKey(answers, model.TCP, at), GotoValue("pick", "a name"))
	emit(AddrPortKey(answers, model.UDP, at), DropValue(""))
	for i := range uint16(2) {
		k := AddrPortKey(numbers, model.TCP, at)
		k.Slot = i
		emit(k, EndpointValue(netip.AddrPortFrom(addr("10.1.0.1", "fd01::1"), 8080+i)))
	}
	emit(AddrKey(pairs, at.Addr()), Value{})
	emit(AddrKey(pairs, at.Addr()).WithSecond(addr("10.1.0.1", "fd01::1")), Value{})
	emit(AddrPortKey(sources, model.TCP, at).Within(prefix("192.0.2.0/24", "2001:db8::/32")), Value{})
	emit(AddrKey(places, prefix("10.0.0.0/8", "fd00::/8").Addr()).Within(prefix("10.0.0.0/8", "fd00::/8")), Value{})
	last := prefix("255.0.0.0/8", "ff00::/8") // up to the last address: it has no end
	emit(AddrKey(places, last.Addr()).Within(last), Value{})
	emit(t.ChainObject(f, "in", NATHook(PreRouting), []Rule{
		NewRule(Lookup{Set: places, Not: true}, Drop{}),
		{Statements: []Statement{Lookup{Set: sources, Not: true}, Reject{}}, Comment: "other sources"},
		NewRule(Vmap{Map: answers}),
		NewRule(Over{Set: clients, Burst: 100, Period: 24 * time.Hour}, Drop{}), // the packets here are the first
		NewRule(Update{Set: clients, Timeout: time.Hour}, Accept{}),
	}))
	emit(t.ChainObject(f, "pick", Hook{}, []Rule{NewRule(L4ProtoIs{Proto: model.TCP}, DNATMap{Map: numbers, Number: Numgen{Mod: 2}})}))
	return objects
}

func creation(t *Table, objects map[Key]Value) (ops []Op) {
	for _, k := range t.Sorted(objects) {
		ops = append(ops, Op{Verb: ledger.Create, Key: k, New: objects[k]})
	}
	return ops
}

// What is encoded is decoded as it was: the kernel returns objects as they were made.
func TestObjectsComeBack(t *testing.T) {
	table := testTable()
	for _, f := range model.Families() {
		want, got := testObjects(table, f), map[Key]Value{}
		table.Decode(f, table.Encode(creation(table, want), 1), func(k Key, v Value) { got[k] = v })
		for k, v := range want {
			if again, ok := got[k]; !ok || !again.Equal(v) {
				t.Errorf("%s came back as %+v (%t), want %+v", k, again, ok, v)
			}
		}
		for k := range got {
			if _, ok := want[k]; !ok {
				t.Errorf("%s came from nowhere", k)
			}
		}
	}
}

// Elements that are read by their keys come in a message each. Those of endpoints take no memory.
func TestElementsAreReadWithoutMemory(t *testing.T) {
	table := testTable()
	read := func(n uint16) float64 {
		var dump []byte
		k := AddrPortKey(numbers, model.TCP, netip.MustParseAddrPort("10.0.0.1:80"))
		for k.Slot = range n {
			op := Op{Verb: ledger.Create, Key: k, New: EndpointValue(netip.MustParseAddrPort("10.1.0.1:8080"))}
			dump = append(dump, table.Encode([]Op{op}, 1)...)
		}
		found := uint16(0)
		count := func(Key, Value) { found++ }
		table.Decode(model.IPv4, dump, count)
		if found != n {
			t.Fatalf("%d of %d elements", found, n)
		}
		return testing.AllocsPerRun(10, func() { table.Decode(model.IPv4, dump, count) })
	}
	if few, many := read(10), read(1000); many > few {
		t.Errorf("%v allocations for 10 elements, %v for 1000", few, many)
	}
}

// A table of another name, owner or version is not ours, or not whole.
func TestOtherTables(t *testing.T) {
	ours := testTable()
	dump := ours.Encode(creation(ours, testObjects(ours, model.IPv4)), 1)
	for name, other := range map[string]*Table{
		"another name":    NewTable("other", ours.Owner, ours.Comment, ours.Sets()...),
		"another version": NewTable("test", ours.Owner, "a test (layout 2)", ours.Sets()...),
	} {
		var found []Key
		other.Decode(model.IPv4, dump, func(k Key, _ Value) {
			if k.Kind != KindElement {
				found = append(found, k)
			}
		})
		if want := strings.Count(name, "version"); len(found) != want || want == 1 && found[0].Kind != KindTable {
			t.Errorf("%s: found %v", name, found)
		}
	}
}

// The evaluator does what the rules say.
func TestDecide(t *testing.T) {
	table := testTable()
	sim := NewSim(testObjects(table, model.IPv4), &model.Host{})
	for _, c := range []struct {
		src, dst  string
		proto     model.Proto
		fate      oracle.Fate
		endpoints int
	}{
		{"192.0.2.7", "10.0.0.1:80", model.TCP, oracle.Forward, 2},
		{"192.0.2.7", "10.0.0.1:80", model.UDP, oracle.Reject, 0}, // sources are for TCP
		{"198.51.100.7", "10.0.0.1:80", model.TCP, oracle.Reject, 0},
		{"192.0.2.7", "11.0.0.1:80", model.TCP, oracle.Drop, 0},
	} {
		p := oracle.Packet{Src: netip.MustParseAddr(c.src), Dst: netip.MustParseAddrPort(c.dst), Proto: c.proto, Iface: "eth0"}
		if got := sim.Decide(p); got.Fate != c.fate || len(got.Endpoints) != c.endpoints {
			t.Errorf("%s %s to %s: %v %v", c.proto, c.src, c.dst, got.Fate, got.Endpoints)
		}
	}
}

// Keys stay small: there is one for every endpoint of every frontend.
func TestKeySize(t *testing.T) {
	if n := int(unsafe.Sizeof(Key{})); n > 40 {
		t.Errorf("a key takes %d bytes", n)
	}
}
