// SPDX-License-Identifier: Apache-2.0

package nft

import "strings"

// Describe spells the content of an object, as nft would.
func Describe(k Key, v Value) string {
	switch {
	case k.Kind == KindElement:
		return k.Text(v)
	case k.Kind == KindForeign:
		return "not written by Tandem"
	case k.Kind != KindChain:
		return k.String()
	case Opaque(k, v):
		return "rules that Tandem did not write, or in another order"
	}
	var parts []string
	if h := v.Body.Chain.Hook; h.Type != "" {
		parts = append(parts, h.String())
	}
	for _, r := range v.Body.Chain.Rules {
		parts = append(parts, r.Text(k.Family))
	}
	return strings.Join(parts, "\n")
}

// Opaque reports whether an object is a chain, of which only a digest is known, or
// an element that we cannot have written.
func Opaque(k Key, v Value) bool {
	switch k.Kind {
	case KindForeign:
		return true
	case KindChain:
		return v.Body == nil || v.Body.Chain == nil || len(v.Body.Chain.Rules) == 0
	}
	return false
}
