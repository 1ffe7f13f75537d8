// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Every answer says the same in both forms, filled and empty.
func TestBothFormsSayTheSame(t *testing.T) {
	for _, filled := range []bool{true, false} {
		for _, v := range []any{
			new(question.Status), new(question.Services), new(question.Explanation), new(question.Trace), new(question.Drift),
			new(question.Top), new(question.Preview), new([]question.Explanation), new(history.Document),
		} {
			if filled {
				fill(reflect.ValueOf(v).Elem(), "\u00e9\x1b")
			}
			var said [2][]byte
			for i, accept := range []string{"", wire.Accept} {
				kind := wire.Type(accept)
				text, err := wire.Marshal(kind, v)
				if err != nil {
					t.Fatalf("%T, %s: %v", v, kind, err)
				}
				again := reflect.New(reflect.TypeOf(v).Elem()).Interface()
				if err := wire.Read(kind, bytes.NewReader(text), again); err != nil {
					t.Fatalf("%T, %s: %v", v, kind, err)
				}
				if said[i], err = json.Marshal(again); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := json.Marshal(v); err != nil || string(said[0]) != string(want) || string(said[1]) != string(want) {
				t.Errorf("%T, filled %t: %v\n%s\n%s\n%s", v, filled, err, want, said[0], said[1])
			}
		}
	}
}

// An answer that is written in parts has the bytes that it has as a whole.
func TestPartsAreTheWhole(t *testing.T) {
	type answer struct {
		Before   string          `json:"before,omitempty"`
		Problems []question.Node `json:"problems,omitempty"`
		Entries  []int           `json:"entries"`
		After    *time.Time      `json:"after,omitempty"`
	}
	at := time.Date(2026, 11, 22, 8, 7, 34, 123456789, time.UTC)
	for _, n := range []int{0, 1, 23, 24, 255, 256, 65535, 65536} {
		entries := make([]int, n)
		for i := range entries {
			entries[i] = i
		}
		for _, head := range []answer{{}, {Before: "<>\n", Problems: []question.Node{}, After: &at}, {Problems: []question.Node{{Node: "a"}}}} {
			whole := head
			whole.Entries = entries
			same(t, wire.ListOf(entries).In(head, "entries"), whole)
		}
	}
	for _, filled := range []bool{true, false} {
		d, s, h := question.Status{}, question.Services{}, history.Document{}
		for _, v := range []any{&d, &s, &h} {
			if filled {
				fill(reflect.ValueOf(v).Elem(), "\u00e9\x1b")
			}
		}
		if !filled {
			d.Services, s.Services, h.Entries = []question.Service{}, []question.ServiceDetail{}, []history.Entry{}
		}
		same(t, wire.ListOf(d.Services).In(d, "services"), d)
		same(t, wire.ListOf(s.Services).In(s, "services"), s)
		same(t, wire.ListOf(h.Entries).In(h, "entries"), h)
	}
}

func same(t *testing.T, l wire.Listing, whole any) {
	t.Helper()
	for _, kind := range []string{wire.JSON, wire.CBOR} {
		var got []byte
		last, err := wire.Encode(kind, l, func(part []byte) error {
			if len(part) > 40<<10 {
				t.Errorf("a part of %d bytes", len(part))
			}
			got = append(got, part...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, last...)
		if want, err := wire.Marshal(kind, whole); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s, %T: %v\n%.300q\n%.300q", kind, whole, err, got, want)
		}
	}
}

// A list that is not as long as it said has no valid form.
func TestListOfAnotherLength(t *testing.T) {
	l := wire.ListOf([]int{1, 2})
	l.Len = 3
	if _, err := wire.Encode(wire.CBOR, l.In(struct {
		Entries []int `json:"entries"`
	}{}, "entries"), nil); err == nil {
		t.Error("no error")
	}
}

// fill gives every field a value.
func fill(v reflect.Value, text string) {
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Date(2026, 11, 22, 8, 7, 34, 123456789, time.UTC)
		return
	case *netip.AddrPort:
		*x = netip.MustParseAddrPort("10.0.0.1:80")
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				fill(f, text)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), text)
	case reflect.Map:
		one := reflect.New(v.Type().Elem()).Elem()
		fill(one, text)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(text).Convert(v.Type().Key()), one)
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(0.1)
	case reflect.Int, reflect.Int64:
		v.SetInt(-7)
	case reflect.Uint64:
		v.SetUint(1 << 63)
	}
}
