package nftables

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/ledger"
)

func mustCommit(t testing.TB, d *Driver, ops []ledger.Op[Key, Value]) {
	t.Helper()
	for i, err := range d.Commit(t.Context(), ops) {
		if err != nil {
			t.Fatalf("%s %s: %v", ops[i].Verb, ops[i].Key, err)
		}
	}
}

func mustObserve(t testing.TB, d *Driver) map[Key]Value {
	t.Helper()
	have, err := d.Observe(t.Context())
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
		listings["driver"] = nft(t, "", "list", "ruleset")
	})
	t.Run("script", func(t *testing.T) {
		freshNamespace(t)
		nft(t, Script(objects), "-f", "-")
		listings["script"] = nft(t, "", "list", "ruleset")
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
