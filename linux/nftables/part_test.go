package nftables

import (
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// A cut separates no ranges of one front, unless there is nothing else.
func TestCut(t *testing.T) {
	key := func(front, r string) Key {
		k := frontElement(Allowed, model.TCP, netip.MustParseAddrPort(front))
		k.Rest = within(netip.MustParsePrefix(r))
		return k
	}
	slot := op{Key: frontElement(Slots, model.TCP, netip.MustParseAddrPort("10.96.0.1:80"))}
	come := op{Key: key("10.96.0.1:80", "10.0.0.0/8")}
	goes := op{Verb: ledger.Delete, Key: key("10.96.0.1:80", "10.0.0.0/24")}
	other := op{Key: key("10.96.0.2:80", "10.0.0.0/8")}
	for name, c := range map[string]struct {
		ops  []op
		want int
	}{
		"no ranges":  {[]op{slot, slot, slot, slot}, 2},
		"at the end": {[]op{goes, come, slot}, 2},
		"in front":   {[]op{slot, goes, come}, 1},
		"two fronts": {[]op{goes, come, other, other, other}, 2},
		"one front":  {[]op{goes, goes, come, come}, 2},
		"two":        {[]op{goes, come}, 1},
	} {
		if got := cut(c.ops); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	order := gathered([]op{slot, come, other, slot, goes})
	for i, want := range []int{0, 4, 1, 2, 3} {
		if order[i] != want {
			t.Fatalf("order %v", order)
		}
	}
}
