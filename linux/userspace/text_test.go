// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"math"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// A chain of entries has no rules of its own: one that was deleted is not described as foreign.
func TestTextOfChains(t *testing.T) {
	entries := Key{Kind: KindChain, Family: model.IPv4, Chain: chainPod}
	for _, c := range []struct {
		what    string
		key     Key
		value   Value
		foreign bool
	}{
		{"a chain of entries", entries, Value{}, false},
		{"a chain of entries in nftables", entries, Value{Digest: digest(entries, nil)}, false},
		{"one with another rule", entries, Value{Digest: math.MaxUint64}, true},
		{"a fixed chain in another order", Key{Kind: KindChain, Family: model.IPv4, Chain: chainIn}, Value{}, true},
		{"a foreign jump", Key{Kind: kindJump, Family: model.IPv4, Chain: "PREROUTING"}, Value{}, true},
	} {
		var mode Compiler
		if got := mode.Opaque(c.key, c.value); got != c.foreign {
			t.Errorf("%s: opaque %t", c.what, got)
		}
		if text := mode.Text(c.key, c.value); (text == "foreign rules, or rules in another order") != c.foreign {
			t.Errorf("%s: %q", c.what, text)
		}
	}
}
