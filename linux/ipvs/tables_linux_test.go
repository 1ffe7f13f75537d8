// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// A transaction that fails in one table may have been done in those before it:
// repeating it without a read would duplicate the jumps.
func TestWhatFailsInOneTableLeavesOpenTheOthers(t *testing.T) {
	tables := freshTables(t)
	var good, bad ChainID
	for c := noChain + 1; c < numChains; c++ {
		switch {
		case c.from() == "":
		case c.table() == ownedTables[0]:
			good = c
		case c.table() == ownedTables[1]:
			bad = c
		}
	}
	ops := []ledger.Op[Key, Value]{
		create(KindChain, good, ours()), create(kindJump, good, Value{}),
		create(KindChain, bad, ours(xtables.JumpTo("NO-SUCH-CHAIN-HERE"))),
	}
	errs := tables.do(t, ops...)
	if _, done := tables.have(t)[ops[1].Key]; !done {
		t.Fatal("the first table was not written: the test proves nothing")
	}
	for i, err := range errs {
		if !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("%s: %v", ops[i].Key, err)
		}
	}
}

// A chain that another program has emptied, or put a rule in front of, is ours as before,
// with its jump.
func TestChainsOthersWereAt(t *testing.T) {
	tables := freshTables(t)
	if err := errors.Join(tables.do(t, create(KindChain, filterIn, ours()), create(kindJump, filterIn, Value{}))...); err != nil {
		t.Fatal(err)
	}
	for _, harm := range []string{"-I KUBE-IPVS-FILTER 1 -j RETURN", "-F KUBE-IPVS-FILTER"} {
		if err := tables.Restore(t.Context(), model.IPv4, []byte("*filter\n"+harm+"\nCOMMIT\n")); err != nil {
			t.Fatal(err)
		}
		have := tables.have(t)
		chain, known := have[Key{Kind: KindChain, Chain: filterIn}]
		if jump, led := have[Key{Kind: kindJump, Chain: filterIn}]; !known || chain == ours() || !led || jump != (Value{}) {
			t.Errorf("%s: %v", harm, have)
		}
	}
}

// Jumps that are there more than once become one, and all go when the chain does.
func TestJumpsThatAreThereTwice(t *testing.T) {
	tables := freshTables(t)
	chain, jump := Key{Kind: KindChain, Chain: filterIn}, Key{Kind: kindJump, Chain: filterIn}
	begin := []ledger.Op[Key, Value]{create(KindChain, filterIn, ours()), create(kindJump, filterIn, Value{})}
	must := func(ops ...ledger.Op[Key, Value]) {
		t.Helper()
		if err := errors.Join(tables.do(t, ops...)...); err != nil {
			t.Fatal(err)
		}
	}
	must(begin...)
	must(begin...)
	twice := tables.have(t)[jump]
	if twice == (Value{}) {
		t.Error("a jump that is there twice is taken for right")
	}
	must(ledger.Op[Key, Value]{Verb: ledger.Replace, Key: jump, Old: twice})
	if once, there := tables.have(t)[jump]; !there || once != (Value{}) {
		t.Errorf("after the repair: %t, %+v", there, once)
	}
	must(begin...)
	must(
		ledger.Op[Key, Value]{Verb: ledger.Delete, Key: jump, Old: tables.have(t)[jump]},
		ledger.Op[Key, Value]{Verb: ledger.Delete, Key: chain},
	)
	if have := tables.have(t); len(have) > 0 {
		t.Errorf("left: %v", have)
	}
}

// freshTables are those of a network namespace of the test's own, where its thread
// stays.
func freshTables(t *testing.T) *tables {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	commands, _, err := xtables.Find(t.Context())
	if err != nil {
		t.Skip(err)
	}
	tables, err := openTables(commands)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tables.Close() })
	return tables
}

func (t *tables) do(test *testing.T, ops ...ledger.Op[Key, Value]) []error {
	errs := make([]error, len(ops))
	t.apply(test.Context(), ops, errs)
	return errs
}

func (t *tables) have(test *testing.T) map[Key]Value {
	test.Helper()
	found := map[Key]Value{}
	if err := t.observe(test.Context(), model.IPv4, func(k Key, v Value) { found[k] = v }); err != nil {
		test.Fatal(err)
	}
	return found
}

func ours(rules ...xtables.Rule) Value { return ownedChain(rules...) }

func create(kind Kind, c ChainID, v Value) ledger.Op[Key, Value] {
	return ledger.Op[Key, Value]{Key: Key{Kind: kind, Chain: c}, New: v}
}
