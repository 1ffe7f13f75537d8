// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
)

// encoded is the line with a value, as it is written.
func encoded(t *testing.T, v any) []byte {
	t.Helper()
	e := newEncoder()
	text := e.line(nil, v)
	if e.err != nil || !json.Valid(text) {
		t.Fatalf("%v: %s", e.err, text)
	}
	return text
}

// Every line is read as the value that was written, as if encoding/json had written it, filled and empty, and with any text.
func TestEncoder(t *testing.T) {
	for _, text := range []string{"plain", "", `"\`, "\u00e9\x1b<>&\u2028", "\xff"} {
		for i := range reflect.TypeFor[line]().NumField() {
			var l, want, got line
			field := reflect.ValueOf(&l).Elem().Field(i)
			if field.Set(reflect.New(field.Type().Elem())); text != "" {
				fill(field.Elem(), text)
			}
			plain, err := json.Marshal(l)
			if err != nil || strict(plain, &want) != nil {
				t.Fatalf("%s: %v", plain, err)
			}
			if short := encoded(t, field.Interface()); strict(short, &got) != nil || !reflect.DeepEqual(got, want) || len(short) > len(plain)+20 {
				t.Errorf("%T with %q:\n%s\n%s", field.Interface(), text, short, plain)
			}
		}
	}
	e := newEncoder()
	if e.line(nil, &history.Entry{Age: history.Seconds(math.NaN())}); e.err == nil {
		t.Error("what JSON cannot have is written")
	}
}

// fill gives every field a value.
func fill(v reflect.Value, text string) {
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Date(2026, 11, 22, 8, 7, 34, 123456789, time.UTC)
		return
	case *netip.Addr:
		*x = netip.MustParseAddr("2001:db8::1")
		return
	case *netip.AddrPort:
		*x = netip.MustParseAddrPort("10.0.0.1:80")
		return
	case *netip.Prefix:
		*x = netip.MustParsePrefix("10.0.0.0/8")
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
	case reflect.Slice: // the second stays empty
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), text)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, text)
		fill(value, text)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(0.1)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(-7)
	default:
		v.SetUint(200)
	}
}
