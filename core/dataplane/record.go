// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// KeyDecoder is implemented by compilers whose keys need more than their JSON text.
type KeyDecoder[K comparable] interface {
	// DecodeKey is the reverse of the key's MarshalJSON.
	DecodeKey(text []byte) (K, error)
}

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

// traceRecorded is Trace in a data plane that is as c compiles it, but for what was recorded.
func traceRecorded[K comparable, V any](c Compiler[K, V], host *model.Host, ports []*model.Port, p oracle.Packet, recorded []Difference) (Trace, error) {
	e, ok := c.(Evaluator[K, V])
	if !ok {
		return Trace{}, errUntraceable
	}
	want, _ := Compile(c, host, ports)
	names := make(map[string]K, len(want))
	for k := range want {
		names[fmt.Sprint(k)] = k
	}
	r := inspection[K, V]{found: maps.Clone(want), read: len(want)}
	var unknown []string
	for _, d := range recorded {
		k, v, err := restore(c, d.Record)
		switch named, ok := names[d.Object]; {
		case err != nil && d.State == Missing && ok:
			k = named
		case err != nil && d.State != Missing:
			unknown = append(unknown, d.Object)
			continue
		}
		if d.State == Missing {
			delete(r.found, k)
		} else {
			r.found[k] = v
		}
		r.differing = append(r.differing, differing[K]{key: k, Difference: d})
	}
	r.sort(c)
	t := r.conclude(e, want, host, p)
	t.Opaque = append(t.Opaque, unknown...)
	return t, nil
}
