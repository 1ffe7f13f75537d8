// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"maps"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// mustObserveSome returns what is read for some keys, each object once.
func mustObserveSome(t *testing.T, d *Driver, keys ...nft.Key) map[nft.Key]nft.Value {
	t.Helper()
	have := map[nft.Key]nft.Value{}
	if err := d.ObserveSome(t.Context(), keys, func(k nft.Key, v nft.Value) {
		if _, twice := have[k]; twice {
			t.Errorf("%s is passed twice", k)
		}
		have[k] = v
	}); err != nil {
		t.Fatal(err)
	}
	return have
}

// What is read for some keys is what reading everything finds: all that cannot be read one
// by one, and of the rest the keys alone; of absent ones nothing, with other programs' changes,
// and it uses no notice of these up.
func TestObserveSomeIsPartOfObserve(t *testing.T) {
	freshNamespace(t)
	d := openDriver(t)
	mend(t, d, compile(t, testHost, testPorts()...))
	all := mustObserve(t, d)
	ones := slices.DeleteFunc(slices.Collect(maps.Keys(all)), func(k nft.Key) bool { return !k.Single() })
	if len(ones) < 20 || len(ones) == len(all) {
		t.Fatalf("%d of %d objects can be read one by one: the test proves nothing", len(ones), len(all))
	}
	rest := func(keys ...nft.Key) map[nft.Key]nft.Value {
		want := maps.Clone(all)
		maps.DeleteFunc(want, func(k nft.Key, _ nft.Value) bool { return k.Single() && !slices.Contains(keys, k) })
		return want
	}
	check := func(what string, want map[nft.Key]nft.Value, keys ...nft.Key) {
		t.Helper()
		for _, diff := range differences(want, mustObserveSome(t, d, keys...)) {
			t.Errorf("%s: %s", what, diff)
		}
	}
	check("no key", rest())
	check("all keys", all, ones...)
	for _, k := range ones {
		check(k.String(), rest(k), k)
	}
	slot := ones[slices.IndexFunc(ones, func(k nft.Key) bool { return k.Set == setSlots && k.Family == model.IPv4 })]
	absent := slot
	absent.Port ^= 0x5555
	check("an absent key beside another", rest(slot), absent, slot)

	runNFT(t, "flush map ip tandem slots", "-f", "-")
	gone := rest(slot)
	delete(gone, slot)
	check("a key that another program has deleted", gone, slot)
	if seen, err := d.Disturbed(t.Context()); err != nil || !seen {
		t.Errorf("the notice of that write is used up (%v)", err)
	}
}
