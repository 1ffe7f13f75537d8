// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// A transaction that fails does nothing, blames the op that is to blame, by
// name, and is not taken for another program's change.
func TestFailureIsAtomicAndNamed(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	want := compile(t, testHost, testPorts()...)
	mend(t, d, want)
	slotKey := func(n uint16) nft.Key {
		return nft.Key{Kind: nft.KindElement, Family: model.IPv4, Set: setSlots, Proto: model.TCP, Port: 80, Slot: n, Addr: [16]byte{10, 96, 0, 99}}
	}
	good := func(n uint16) nft.Op {
		return nft.Op{Verb: ledger.Create, Key: slotKey(n), New: nft.Value{To: [16]byte{1, 2, 3, 4}, Port: 5}}
	}
	for name, bad := range map[string]nft.Op{
		"element that is not there": {Verb: ledger.Delete, Key: slotKey(900)},
		"goto a chain that is not there": {
			Verb: ledger.Create, Key: nft.PortKey(setNodePorts, model.IPv4, model.TCP, 7),
			New: nft.Value{Body: &nft.Body{Verdict: nft.VerdictGoto, Goto: "pick-77"}},
		},
		"chain in use":          {Verb: ledger.Delete, Key: nft.ChainKey(model.IPv4, chainReject)},
		"rule to a missing set": {Verb: ledger.Create, Key: nft.ChainKey(model.IPv4, "x"), New: chainOf(model.IPv4, nft.NewRule(nft.Lookup{Set: &nft.Set{Name: "missing", Key: frontKey}}))},
	} {
		ops := []nft.Op{good(0), good(1), good(2), bad, good(3)}
		errs := d.Commit(t.Context(), ops)
		for i, err := range errs {
			if err == nil || errors.Is(err, ledger.ErrUnknown) {
				t.Errorf("%s: op %d has the result %v", name, i, err)
			} else if !strings.Contains(err.Error(), strings.Replace(bad.Key.String(), " ip ", " ip tandem ", 1)) {
				t.Errorf("%s: op %d: %q does not name %s", name, i, err, bad.Key)
			}
		}
		if seen, err := d.Disturbed(t.Context()); err != nil || seen {
			t.Errorf("%s: a failure of our own is taken for a disturbance (%v)", name, err)
		}
		for _, diff := range differences(want, mustObserve(t, d)) {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// chainOf is the content of a chain that others go to.
func chainOf(f model.Family, rules ...nft.Rule) nft.Value {
	_, v := table.ChainObject(f, "", nft.Hook{}, rules)
	return v
}

// What only the transaction as a whole shows has no nft.Op to blame.
func TestFailureOfTheWhole(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	want := compile(t, testHost, testPorts()...)
	mend(t, d, want)
	key, circle := table.ChainObject(model.IPv4, chainNoService, nft.Hook{}, []nft.Rule{nft.NewRule(nft.Goto{Chain: chainNodeOutput})})
	errs := d.Commit(t.Context(), []nft.Op{{Verb: ledger.Replace, Key: key, Old: want[key], New: circle}})
	if errs[0] == nil || errors.Is(errs[0], ledger.ErrUnknown) {
		t.Errorf("chains that go in a circle: %v", errs[0])
	}
	for _, diff := range differences(want, mustObserve(t, d)) {
		t.Error(diff)
	}
}

// A cancelled context is honoured before anything is done.
func TestCancelled(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if errs := d.Commit(ctx, creation(compile(t, testHost))); !errors.Is(errs[0], context.Canceled) {
		t.Errorf("commit: %v", errs[0])
	}
	mustCommit(t, d, creation(compile(t, testHost)))
	if _, err := d.Objects(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("observe: %v", err)
	}
	mustObserve(t, d) // the driver is still usable
}

// What cannot be read is an error, and never "nothing there".
func TestUnreadable(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	mustCommit(t, d, creation(compile(t, testHost)))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if have, err := d.Objects(t.Context()); err == nil {
		t.Errorf("a closed driver reads %d objects", len(have))
	}
	if errs := d.Commit(t.Context(), creation(compile(t, testHost))); errs[0] == nil {
		t.Error("a closed driver commits")
	}
}

const foreign = `
add table ip theirs
add set ip theirs slots { type ipv4_addr; }
add element ip theirs slots { 1.1.1.1 }
add chain ip theirs prerouting { type nat hook prerouting priority dstnat; }
add rule ip theirs prerouting ip daddr @slots drop
add table inet tandem
add chain inet tandem x
add rule inet tandem x drop
add table ip tandem-other
add table ip6 kube-proxy
add map ip6 kube-proxy service-ips { type ipv6_addr : verdict; }
add element ip6 kube-proxy service-ips { fd00::1 : drop }
`

// What is not ours stays unchanged, whatever we do.
func TestForeignTables(t *testing.T) {
	freshNamespace(t)
	runNFT(t, foreign, "-f", "-")
	before := runNFT(t, "", "list", "ruleset")
	d := openDriver(t)
	mend(t, d, compile(t, testHost, testPorts()...))
	mend(t, d, compile(t, testHost, testPorts()[2:]...))
	if err := Probe(t.Context()); err != nil {
		t.Error(err)
	}
	for _, table := range []string{"ip theirs", "inet tandem", "ip tandem-other", "ip6 kube-proxy"} {
		if now := runNFT(t, "", "list", "table", strings.Fields(table)[0], strings.Fields(table)[1]); !strings.Contains(before, now) {
			t.Errorf("table %s was changed to\n%s", table, now)
		}
	}
	for range 2 { // the second time there is nothing left to do
		if err := Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := runNFT(t, "", "list", "ruleset"); after != before {
			t.Errorf("after removal:\n%s\nbefore:\n%s", after, before)
		}
	}
}

func TestProbe(t *testing.T) {
	freshNamespace(t)
	for range 2 {
		if err := Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if left := runNFT(t, "", "list", "ruleset"); left != "" {
		t.Errorf("the probe leaves\n%s", left)
	}
	for errno, advice := range map[error]string{unix.EPERM: "CAP_NET_ADMIN", unix.EPROTONOSUPPORT: "modprobe nf_tables", unix.ENOENT: "nft_fib"} {
		if err := nft.Advise(errno); !errors.Is(err, errno) || !strings.Contains(err.Error(), advice) {
			t.Errorf("%v: %v does not advise %q", errno, err, advice)
		}
	}
}

// shrink gives a driver a send buffer of size bytes, or twice as much, which is
// what Linux makes of it.
func shrink(t testing.TB, d *Driver, size int) {
	t.Helper()
	if got := d.SetSendBuffer(size); got > 2*size {
		t.Fatalf("the send buffer takes %d bytes", got)
	}
}

// mustHave waits until all of what is wanted is read back. A dump may miss elements
// while the kernel makes room for those that have come.
func mustHave(t testing.TB, d *Driver, want map[nft.Key]nft.Value) {
	t.Helper()
	var diffs []string
	for range 100 {
		if diffs = differences(want, mustObserve(t, d)); len(diffs) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("%d differences, such as: %s", len(diffs), diffs[0])
}

// Where the send buffer cannot be made large, as in an unprivileged user
// namespace, the driver asks for small batches, and cuts what is still too large.
func TestSmallSendBuffer(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	if batch := d.Limits().Batch; batch != 12000 {
		t.Errorf("batches of %d ops as root", batch)
	}
	shrink(t, d, 100000)
	small, want := compile(t, testHost, manyPorts(100)...), compile(t, testHost, manyPorts(2000)...)
	if n := fill(t, d, small); n < 2 {
		t.Errorf("only %d batches", n)
	}
	mustCommit(t, d, planned(small, want))
	if d.Transactions() < 5 {
		t.Errorf("only %d transactions", d.Transactions())
	}
	mustHave(t, d, want)
}

// restrictedPorts are manyPorts that answer clients inside prefixes alone.
func restrictedPorts(n int, allow ...string) []*model.Port {
	ports := manyPorts(n)
	for _, p := range ports {
		p.Frontends[0].Restricted = true
		for _, a := range allow {
			p.Frontends[0].Allow = append(p.Frontends[0].Allow, netip.MustParsePrefix(a))
		}
	}
	return ports
}

// Ranges that change to others which overlap them do so in one transaction,
// wherever a large one is cut: the kernel rejects both at once.
func TestRangesChangeInParts(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	host := func(prefixes ...string) *model.Host {
		h := *testHost
		h.NodePorts.Prefixes = nil
		for _, p := range prefixes {
			h.NodePorts.Prefixes = append(h.NodePorts.Prefixes, netip.MustParsePrefix(p))
		}
		return &h
	}
	narrow := compile(t, host("10.1.0.0/24", "fd00::/64"), restrictedPorts(80, "10.0.0.0/24", "10.2.0.0/24")...)
	wide := compile(t, host("10.1.0.0/16", "fd00::/48"), restrictedPorts(80, "10.0.0.0/8")...)
	mustCommit(t, d, creation(narrow))
	shrink(t, d, 2500)
	for range 3 {
		before := d.Transactions()
		mustCommit(t, d, planned(narrow, wide))
		if d.Transactions()-before < 3 {
			t.Errorf("only %d transactions", d.Transactions()-before)
		}
		mustHave(t, d, wide)
		mustCommit(t, d, planned(wide, narrow))
		mustHave(t, d, narrow)
	}
}

// A frontend whose ranges alone are too many for a transaction changes in several:
// what goes comes first.
func TestManyRangesOfOneFront(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	var some []string
	for i := range 200 {
		some = append(some, fmt.Sprintf("10.%d.0.0/24", i))
	}
	narrow, wide := compile(t, testHost, restrictedPorts(1, some...)...), compile(t, testHost, restrictedPorts(1, "10.0.0.0/8")...)
	mustCommit(t, d, creation(narrow))
	shrink(t, d, 2500)
	mustCommit(t, d, planned(narrow, wide))
	mustHave(t, d, wide)
	mustCommit(t, d, planned(wide, narrow))
	mustHave(t, d, narrow)
}

// When one of several transactions fails, those before it are done, and each op
// has the result that is true for it.
func TestPartlyDone(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	mend(t, d, compile(t, testHost))
	shrink(t, d, 5000)
	have := mustObserve(t, d)
	want := compile(t, testHost, manyPorts(200)...)
	ops := planned(have, want)
	bad := len(ops) / 2
	ops[bad].Verb = ledger.Delete // of what is not there
	errs := d.Commit(t.Context(), ops)
	if errs[0] != nil || errs[bad] == nil || errs[len(ops)-1] == nil {
		t.Errorf("the first op has the result %v, the bad one %v, the last one %v", errs[0], errs[bad], errs[len(ops)-1])
	}
	have = mustObserve(t, d)
	for i, o := range ops {
		if _, there := have[o.Key]; there != (errs[i] == nil) {
			t.Errorf("%s %s has the result %v and is there: %t", o.Verb, o.Key, errs[i], there)
		}
	}
	if seen, err := d.Disturbed(t.Context()); err != nil || seen {
		t.Errorf("transactions of our own are taken for a disturbance (%v)", err)
	}
}

// Without privileges the probe says so, and nothing is taken for absent.
func TestNoPrivileges(t *testing.T) {
	freshNamespace(t)
	const nobody = 65534
	// Of this thread only, which ends with the test.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
		t.Fatal(errno)
	}
	if err := Probe(t.Context()); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("probe: %v", err)
	}
	if err := Remove(t.Context()); err == nil {
		t.Error("removal succeeds")
	}
	if _, err := openDriver(t).Objects(t.Context()); err == nil {
		t.Error("reading succeeds")
	}
}
