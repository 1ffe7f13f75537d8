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
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Every answer says the same in both forms, filled and empty.
func TestBothFormsSayTheSame(t *testing.T) {
	for _, filled := range []bool{true, false} {
		for _, v := range []any{
			new(status.Document), new(status.Services), new(status.Explanation), new(status.Trace), new(status.Drift),
			new(status.Top), new(status.Preview), new([]status.Explanation), new(history.Document),
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
