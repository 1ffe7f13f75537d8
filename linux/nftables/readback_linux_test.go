// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"maps"
	"testing"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Slots that are read by their keys are the same objects; where one is missing, or there is
// one that no frontend leads to, the map is read in parts.
func TestReadBackByKeys(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	d.SetMany(1)
	// More than one request reads, and more than is passed on at once.
	large := port("large", front(model.KindClusterIP, "10.96.0.99:80", onAll(balance(poolOf(900), false))))
	want := compile(t, testHost, append(testPorts(), large)...)
	mustCommit(t, d, creation(want))
	check := func(what string, byKeys bool) {
		t.Helper()
		before := d.ReadByKeys()
		for _, diff := range differences(want, mustObserve(t, d)) {
			t.Errorf("%s: %s", what, diff)
		}
		if read := d.ReadByKeys() - before; read == 0 && byKeys {
			t.Errorf("%s: no map was read by its keys", what)
		}
	}
	if mustObserve(t, d); d.ReadByKeys() == 0 {
		t.Skip("this kernel does not count the elements of sets (before 6.17): they are read in parts")
	}
	check("complete", true)

	first, orphan := nft.Key{}, nft.Key{}
	for k := range want {
		if k.Set == setSlots && k.Family == model.IPv4 {
			first, orphan = k, k
			orphan.Slot = 999
		}
	}
	before := maps.Clone(want)
	want[orphan] = want[first]
	mustCommit(t, d, []nft.Op{{Verb: ledger.Create, Key: orphan, New: want[first]}})
	check("with one more", false)

	delete(want, first)
	mustCommit(t, d, []nft.Op{{Verb: ledger.Delete, Key: first, Old: before[first]}})
	check("with another one", false) // as many as there should be

	delete(want, orphan)
	mustCommit(t, d, []nft.Op{{Verb: ledger.Delete, Key: orphan, Old: before[first]}})
	check("without one", false)

	want = before
	mustCommit(t, d, []nft.Op{{Verb: ledger.Create, Key: first, New: before[first]}})
	check("complete again", true)
}
