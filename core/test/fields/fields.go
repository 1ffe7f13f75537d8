// SPDX-License-Identifier: Apache-2.0

// Package fields helps tests to see that comparisons and hashes forget no field: it makes values that differ in
// any one field, at any depth.
package fields

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// Seen checks that same tells apart two values of type T that differ in any one field, but for
// those left out, which it must not compare: paths such as Guard.Listeners.
func Seen[T any](t *testing.T, same func(a, b *T) bool, leftOut ...string) {
	t.Helper()
	if !same(Filled[T](t, ""), Filled[T](t, "")) {
		t.Error("equal values are not the same")
	}
	var paths []string
	each(reflect.ValueOf(new(T)).Elem(), "", func(path string, _ reflect.Value) { paths = append(paths, path) })
	for _, path := range paths {
		want := false
		for _, out := range leftOut {
			want = want || path == out || strings.HasPrefix(path, out+".")
		}
		if got := same(Filled[T](t, ""), Filled[T](t, path)); got != want {
			t.Errorf("values that differ in %s are the same: %v, want %v", path, got, want)
		}
	}
}

// Filled returns a value none of whose fields is zero; the one at a path, which may be empty, has another value.
func Filled[T any](t *testing.T, other string) *T {
	t.Helper()
	x := new(T)
	each(reflect.ValueOf(x).Elem(), "", func(path string, v reflect.Value) {
		n := 1
		if path == other {
			n = 2
		}
		switch {
		case v.Type() == reflect.TypeFor[netip.Addr]():
			v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})))
		case v.Type() == reflect.TypeFor[netip.AddrPort]():
			v.Set(reflect.ValueOf(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 80)))
		case v.Type() == reflect.TypeFor[netip.Prefix]():
			v.Set(reflect.ValueOf(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(n), 0}), 24)))
		case v.Type() == reflect.TypeFor[time.Time]():
			v.Set(reflect.ValueOf(time.Unix(int64(n), 0)))
		case v.Kind() == reflect.Bool:
			v.SetBool(n == 1)
		case v.Kind() == reflect.String:
			v.SetString(fmt.Sprint("name", n))
		case v.CanInt():
			v.SetInt(int64(n))
		case v.CanFloat():
			v.SetFloat(float64(n))
		case v.CanUint():
			v.SetUint(uint64(n))
		default:
			t.Fatalf("%s: a %s has no values here yet", path, v.Type())
		}
	})
	return x
}

// each gives the pointers and slices below v one element, and visits it.
func each(v reflect.Value, path string, f func(path string, v reflect.Value)) {
	fill(v)
	visit(v, path, f)
}

func fill(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case inner(v):
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	}
}

// inner reports whether v is a struct with fields of its own, unlike an address.
func inner(v reflect.Value) bool {
	return v.Kind() == reflect.Struct && v.Type().Field(0).IsExported()
}

// visit calls f for each field below v that has none of its own, of the elements that there are.
// The elements of a slice have one path, those of an array their own.
func visit(v reflect.Value, path string, f func(path string, v reflect.Value)) {
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			visit(v.Elem(), path, f)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			visit(v.Index(i), path, f)
		}
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			visit(v.Index(i), fmt.Sprintf("%s.%d", path, i), f)
		}
	case inner(v):
		for i := range v.NumField() {
			visit(v.Field(i), strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), f)
		}
	default:
		f(path, v)
	}
}

// Varied checks that each field has two values or more among those given, but for those left out.
func Varied[T any](t *testing.T, values []*T, leftOut ...string) {
	t.Helper()
	found := map[string]any{} // by path: the first value, then two
	for _, x := range values {
		visit(reflect.ValueOf(x).Elem(), "", func(path string, v reflect.Value) {
			if first, ok := found[path]; !ok {
				found[path] = v.Interface()
			} else if first != v.Interface() {
				found[path] = two{}
			}
		})
	}
	each(reflect.ValueOf(new(T)).Elem(), "", func(path string, _ reflect.Value) {
		if varied := found[path] == any(two{}); varied == slices.Contains(leftOut, path) {
			t.Errorf("%s varies: %v", path, varied)
		}
	})
}

type two struct{}
