// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// The states.
const (
	Missing    State = "missing"    // wanted, and not there
	Differs    State = "differs"    // there, and not as wanted
	Unexpected State = "unexpected" // there, among our own objects, and not wanted
)

// Record spells an object for Difference.Record.
func Record[K comparable, V any](c Compiler[K, V], k K, v V) string {
	text, err := json.Marshal(struct {
		Key   K
		Value V
	}{k, v})
	if err != nil {
		return ""
	}
	again, value, err := restore(c, string(text))
	if err != nil || again != k || !c.Equal(value, v) {
		return ""
	}
	return string(text)
}

// restore is the reverse of record.
func restore[K comparable, V any](c Compiler[K, V], text string) (k K, v V, err error) {
	parts := struct {
		Key   json.RawMessage
		Value *V
	}{Value: &v}
	if err = json.Unmarshal([]byte(text), &parts); err != nil {
		return k, v, err
	}
	if d, ok := c.(KeyDecoder[K]); ok {
		k, err = d.DecodeKey(parts.Key)
	} else {
		err = json.Unmarshal(parts.Key, &k)
	}
	return k, v, err
}

func (b *backend[K, V]) text(k K, v V) string {
	if e, ok := b.compiler.(Evaluator[K, V]); ok {
		return e.Text(k, v)
	}
	return fmt.Sprint(v)
}

type differing[K comparable] struct {
	key    K
	leaves bool // unexpected, and known to be there: it is on its way out
	Difference
}

// difference describes a key that is not as wanted.
func (b *backend[K, V]) difference(k K, want V, wanted bool, have V, there bool) differing[K] {
	d := differing[K]{key: k, Difference: Difference{Object: fmt.Sprint(k), State: Differs}}
	if wanted {
		d.Wanted = b.text(k, want)
	} else {
		d.State = Unexpected
	}
	if there {
		d.Found = b.text(k, have)
	} else {
		d.State = Missing
	}
	return d
}

func sortKeys[K comparable, V any](c Compiler[K, V], keys []K) {
	names := make(map[K]string, len(keys))
	for _, k := range keys {
		names[k] = fmt.Sprint(k)
	}
	slices.SortFunc(keys, func(a, b K) int { return cmp.Or(c.Rank(a)-c.Rank(b), cmp.Compare(names[a], names[b])) })
}
