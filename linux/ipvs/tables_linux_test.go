package ipvs

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/linux/iptables"
)

// A transaction that fails in one table may have been done in those before it:
// whoever does it once more without looking would have its jumps twice.
func TestWhatFailsInOneTableLeavesOpenTheOthers(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	commands, err := iptables.FindCommands(t.Context())
	if err != nil {
		t.Skip(err)
	}
	tables, err := openTables(commands)
	if err != nil {
		t.Fatal(err)
	}
	defer tables.close()
	var good, bad ChainID
	for c := noChain + 1; c < numChains; c++ {
		switch {
		case c.from() == "":
		case c.table() == tableNames[0]:
			good = c
		case c.table() == tableNames[1]:
			bad = c
		}
	}
	ours := func(lines ...string) Value { return Value{Rules: &Rules{append([]string{comment(owner)}, lines...)}} }
	create := func(kind Kind, c ChainID, v Value) ledger.Op[Key, Value] {
		return ledger.Op[Key, Value]{Key: Key{Kind: kind, Chain: c}, New: v}
	}
	ops := []ledger.Op[Key, Value]{
		create(KindChain, good, ours()), create(KindJump, good, Value{}),
		create(KindChain, bad, ours("-j NO-SUCH-CHAIN-HERE")),
	}
	errs := make([]error, len(ops))
	tables.apply(t.Context(), ops, errs)
	found := map[Key]Value{}
	if err := tables.observe(context.Background(), 0, func(k Key, v Value) { found[k] = v }); err != nil {
		t.Fatal(err)
	}
	if _, done := found[ops[1].Key]; !done {
		t.Fatal("the first table was not written: the test proves nothing")
	}
	for i, err := range errs {
		if !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("%s: %v", ops[i].Key, err)
		}
	}
}
