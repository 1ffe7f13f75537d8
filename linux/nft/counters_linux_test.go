// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Elements that are replaced keep their counts, also next to one that is missing, and no
// others are read for that: the cost follows the change, not the size of the set.
func TestCountsAreReadByKeys(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	runtime.LockOSThread() // and the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	const have, replaced = 3000, 200
	slots := &Set{Name: "slots", Key: []Field{Daddr, L4Proto, Dport}, Data: DataEndpoint}
	table := NewTable("tandem-test", Owner, Owner, slots)
	d, err := Open(table, model.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	element := func(i int, packets uint64) Op {
		front := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)
		v := Value{Port: 8080, Body: &Body{Counter: &Count{Packets: packets, Bytes: packets}}}
		v.To[3] = 1
		return Op{Key: AddrPortKey(slots, model.TCP, front), New: v}
	}
	var ops []Op
	tk, tv := table.Object(model.IPv4)
	sk, sv := SetObject(model.IPv4, slots)
	ops = append(ops, Op{Key: tk, New: tv}, Op{Key: sk, New: sv})
	for i := range have {
		ops = append(ops, element(i, uint64(i)))
	}
	if err := errors.Join(d.Commit(t.Context(), ops)...); err != nil {
		t.Fatal(err)
	}
	ops = ops[:0]
	for i := range replaced {
		o := element(i, 0)
		o.Verb, o.Old = ledger.Replace, o.New
		ops = append(ops, o)
	}
	missing := element(have, 0)
	missing.Verb, missing.Old = ledger.Replace, missing.New
	ops[70] = missing
	// Those of the request with the missing one before it are read twice.
	if read := d.keepCounts(t.Context(), ops); read < replaced-1 || read > replaced-1+atOnce {
		t.Errorf("%d elements read for %d that are replaced, of %d", read, replaced, have)
	}
	for i, o := range ops {
		if want := uint64(i) * b2u(i != 70); o.New.Body.Counter.Packets != want {
			t.Fatalf("element %d has counted %d, want %d", i, o.New.Body.Counter.Packets, want)
		}
	}
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
