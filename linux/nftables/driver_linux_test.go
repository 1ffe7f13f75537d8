// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

func mustCommit(t testing.TB, d *Driver, ops []nft.Op) {
	t.Helper()
	for i, err := range d.Commit(t.Context(), ops) {
		if err != nil {
			t.Fatalf("%s %s: %v", ops[i].Verb, ops[i].Key, err)
		}
	}
}

func mustObserve(t testing.TB, d *Driver) map[nft.Key]nft.Value {
	t.Helper()
	have, err := d.Objects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return have
}

// What is read back is what was written, and nothing else.
func TestObserveAfterCommit(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	if have := mustObserve(t, d); len(have) != 0 {
		t.Fatalf("a new namespace has %d objects", len(have))
	}
	want := compile(t, testHost, testPorts()...)
	mustCommit(t, d, creation(want))
	for _, diff := range differences(want, mustObserve(t, d)) {
		t.Error(diff)
	}
}

// The script and the driver make the same tables.
func TestScriptEqualsDriver(t *testing.T) {
	objects := compile(t, testHost, testPorts()...)
	listings := map[string]string{}
	t.Run("driver", func(t *testing.T) {
		freshNamespace(t)
		mustCommit(t, openDriver(t), creation(objects))
		listings["driver"] = runNFT(t, "", "list", "ruleset")
	})
	t.Run("script", func(t *testing.T) {
		freshNamespace(t)
		runNFT(t, table.Script(objects), "-f", "-")
		listings["script"] = runNFT(t, "", "list", "ruleset")
	})
	compareListings(t, listings["driver"], listings["script"])
	if !strings.Contains(listings["driver"], "10.96.0.10 . tcp . 80 comment \"default/web:http\" : goto pick-3") {
		t.Error("the listing does not tell whose elements are:\n" + listings["driver"])
	}
}

// compareListings compares line by line, elements in any order: the kernel's
// tables have none.
func compareListings(t *testing.T, a, b string) {
	t.Helper()
	la, lb := listingLines(a), listingLines(b)
	for line, n := range la {
		if lb[line] != n {
			t.Errorf("the driver has %d times, the script %d times: %s", n, lb[line], line)
		}
	}
	for line, n := range lb {
		if la[line] == 0 {
			t.Errorf("only the script has, %d times: %s", n, line)
		}
	}
}

func listingLines(listing string) map[string]int {
	lines := map[string]int{}
	for line := range strings.Lines(listing) {
		line = strings.Trim(line, " \t\n,}")
		line = strings.TrimPrefix(line, "elements = { ")
		for _, part := range strings.Split(line, ", ") {
			lines[strings.TrimSpace(part)]++
		}
	}
	return lines
}

// planned is what the ledger would plan from one set of objects to the next.
func planned(from, to map[nft.Key]nft.Value) []nft.Op {
	c := NewCompiler(Options{})
	var ops, deletes []nft.Op
	for k, v := range to {
		old, ok := from[k]
		switch {
		case !ok:
			ops = append(ops, nft.Op{Verb: ledger.Create, Key: k, New: v})
		case !old.Equal(v):
			ops = append(ops, nft.Op{Verb: ledger.Replace, Key: k, Old: old, New: v})
		}
	}
	for k, v := range from {
		if _, ok := to[k]; !ok {
			deletes = append(deletes, nft.Op{Verb: ledger.Delete, Key: k, Old: v})
		}
	}
	slices.SortStableFunc(ops, func(a, b nft.Op) int { return c.Rank(a.Key) - c.Rank(b.Key) })
	slices.SortStableFunc(deletes, func(a, b nft.Op) int { return c.Rank(b.Key) - c.Rank(a.Key) })
	return append(ops, deletes...)
}

// mend brings the kernel to the desired state and checks that.
func mend(t *testing.T, d *Driver, want map[nft.Key]nft.Value) (ops int) {
	t.Helper()
	plan := planned(mustObserve(t, d), want)
	mustCommit(t, d, plan)
	for _, diff := range differences(want, mustObserve(t, d)) {
		t.Error(diff)
	}
	return len(plan)
}

// Ports come, change and go, hosts change: the kernel follows, in transactions
// that create, replace and delete everything at once.
func TestChanges(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	ports := testPorts()
	otherHost := *testHost
	otherHost.Pods = model.PodMatch{Prefix: "veth"}
	otherHost.NodePorts.Prefixes = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/9"), netip.MustParsePrefix("10.128.0.0/9"), netip.MustParsePrefix("10.1.0.0/16"),
		netip.MustParsePrefix("192.168.1.1/32"), netip.MustParsePrefix("255.0.0.0/8"), netip.MustParsePrefix("fd00::/8"),
	}
	otherHost.ServiceCIDRs = []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.97.0.0/16"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("fd00:10:96::/112"),
	}
	moved := testPorts()
	for _, p := range moved {
		for i := range p.Frontends {
			p.Frontends[i].On = onAll(balance(endpoints("10.244.1.7:1", "10.244.1.8:2"), i%2 == 0))
			if p.ID.Family == model.IPv6 {
				p.Frontends[i].On = onAll(balance(endpoints("[fd00:10:244:1::7]:1"), i%2 == 0))
			}
		}
	}
	none := *testHost
	none.NodePorts.Prefixes = nil
	none.ServiceCIDRs = otherHost.ServiceCIDRs[1:2]
	for _, world := range []struct {
		host  *model.Host
		ports []*model.Port
	}{
		{testHost, nil},
		{testHost, ports},
		{&otherHost, ports[3:]},
		{testHost, moved},
		{&none, moved[:4]},
		{&otherHost, nil},
		{testHost, ports},
	} {
		want := compile(t, world.host, world.ports...)
		if n := mend(t, d, want); n == 0 {
			t.Error("a change that changes nothing")
		}
		if plan := planned(mustObserve(t, d), want); len(plan) != 0 {
			t.Errorf("%d ops when nothing has changed, the first on %s", len(plan), plan[0].Key)
		}
	}
	runNFT(t, "", "list", "ruleset")
}

// External changes of our tables are found and can be repaired.
func TestTampering(t *testing.T) {
	for _, script := range tamperings {
		t.Run(script, func(t *testing.T) {
			freshNamespace(t)
			d := openDriver(t)
			want := compile(t, testHost, testPorts()...)
			mend(t, d, want)
			runNFT(t, script, "-f", "-")
			if seen, err := d.Disturbed(t.Context()); err != nil || !seen {
				t.Errorf("not seen (%v)", err)
			}
			mend(t, d, want)
			if seen, err := d.Disturbed(t.Context()); err != nil || seen {
				t.Errorf("seen again after it was repaired (%v)", err)
			}
		})
	}
}

// tamperings are scripts for a namespace of the test's own.
var tamperings = []string{
	"flush ruleset",
	"delete table ip tandem",
	"flush chain ip tandem prerouting",
	"flush map ip tandem slots",
	"add rule ip tandem postrouting drop",
	"insert rule ip tandem postrouting counter",
	"add rule ip tandem pick-3 counter",
	"add chain ip tandem mine\nadd rule ip tandem mine drop\nadd rule ip tandem reject-chain goto mine",
	"add set ip tandem theirs { type ipv4_addr; }\nadd rule ip tandem reject-chain ip saddr @theirs drop",
	"add map ip tandem theirs { type ipv4_addr : verdict; }\nadd chain ip tandem mine\nadd element ip tandem theirs { 1.1.1.1 : goto mine }",
	"delete element ip tandem slots { 10.96.0.10 . tcp . 80 . 1 }",
	"add element ip tandem slots { 10.96.0.10 . tcp . 80 . 70000 : 1.2.3.4 . 5 }",
	"add element ip tandem slots { 10.96.0.99 . tcp . 80 . 0 : 1.2.3.4 . 5 }",
	"add element ip tandem vips { 10.96.0.99 . tcp . 80 : accept }",
	"add element ip tandem vips { 10.96.0.99 . tcp . 80 : jump reject-chain }",
	"delete element ip tandem vips { 10.96.0.10 . tcp . 80 }\nadd element ip tandem vips { 10.96.0.10 . tcp . 80 : drop }",
	"add element ip tandem allowed { 203.0.113.7 . tcp . 80 . 1.2.3.4-1.2.3.9 }",
	"add element ip tandem allowed { 203.0.113.7 . 6-7 . 80-90 . 1.2.3.4-1.2.3.9 }",
	"add element ip tandem hairpin { 1.1.1.1 . 2.2.2.2 }",
	"flush set ip tandem nodeport-addresses\nadd element ip tandem nodeport-addresses { 10.0.0.1-10.0.0.9, 11.0.0.0/8 }",
	"flush set ip6 tandem nodeport-addresses\nadd element ip6 tandem nodeport-addresses { fe80::/10 }",
	"add element ip tandem service-cidrs { 10.0.0.0/8, 11.0.0.1-11.0.0.3 }",
	"add table ip tandem { flags dormant; }",
	"delete element ip tandem l4 { 17 }",
	"add counter ip tandem extra",
	"insert rule ip tandem no-service jump { counter; drop; }",
	"insert rule ip tandem no-service ip saddr { 1.1.1.1, 2.2.2.2 } drop",
	// The whole table, re-created with another layout.
	"delete table ip tandem\ntable ip tandem {\n comment \"" + nft.Owner + " (layout 0)\"\n set slots { type ipv4_addr; }\n chain prerouting { type filter hook prerouting priority 0; }\n}",
}

// The guard of the host's namespace works: a goroutine that did not leave it is
// told from one that did, also when it was started by one that did.
func TestGuardOfHostNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	freshNamespace(t)
	if currentNamespace() == hostNamespace {
		t.Fatal("a fresh namespace is the host's")
	}
	t.Run("subtest", func(t *testing.T) {
		if currentNamespace() != hostNamespace {
			t.Fatal("a subtest is not in the host's namespace: the comment of freshNamespace is wrong")
		}
	})
}
