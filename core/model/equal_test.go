// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// TestComparisonsSeeEveryField sets each field of a Port and of a Host in turn, at any depth.
// A field of Port that Equal does not compare makes no Delta when it changes: the
// kernel would keep the old rules, and no test of core/resolve would notice.
func TestComparisonsSeeEveryField(t *testing.T) {
	t.Run("Port.Equal", func(t *testing.T) { sees(t, (*model.Port).Equal) })
	t.Run("Guard.Equal", func(t *testing.T) {
		sees(t, (*model.Guard).Equal,
			"Listeners") // the processes of a node: core/track compares what Services ask for
	})
	t.Run("Host.SamePorts", func(t *testing.T) {
		sees(t, (*model.Host).SamePorts,
			"Zone",         // core/track resolves only Services that it matters to
			"Guard",        // so it does when policy changes
			"ServiceCIDRs") // of policy, and of the base of a data plane
	})
	t.Run("Host.SameDataPlane", func(t *testing.T) {
		sees(t, (*model.Host).SameDataPlane,
			"Zone", "Guard") // of policy alone
	})
	t.Run("all of Host", func(t *testing.T) { // what core/engine asks before it does nothing
		sees(t, func(h, o *model.Host) bool { return h.SameDataPlane(o) && h.SamePolicy(o) && h.Zone == o.Zone },
			"Guard.Listeners")
	})
}

// sees checks that same tells apart two values of type T that differ in any one field, but for
// those left out, which it must not compare.
func sees[T any](t *testing.T, same func(a, b *T) bool, leftOut ...string) {
	t.Helper()
	if !same(filled[T](t, ""), filled[T](t, "")) {
		t.Error("equal values are not the same")
	}
	var paths []string
	fields(reflect.ValueOf(new(T)).Elem(), "", func(path string, _ reflect.Value) { paths = append(paths, path) })
	for _, path := range paths {
		want := false
		for _, out := range leftOut {
			want = want || path == out || strings.HasPrefix(path, out+".")
		}
		if got := same(filled[T](t, ""), filled[T](t, path)); got != want {
			t.Errorf("values that differ in %s are the same: %v, want %v", path, got, want)
		}
	}
}

// filled returns a value none of whose fields is zero; the one at a path has another value.
func filled[T any](t *testing.T, other string) *T {
	t.Helper()
	x := new(T)
	fields(reflect.ValueOf(x).Elem(), "", func(path string, v reflect.Value) {
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
		case v.Kind() == reflect.Bool:
			v.SetBool(n == 1)
		case v.Kind() == reflect.String:
			v.SetString(fmt.Sprint("name", n))
		case v.CanInt():
			v.SetInt(int64(n))
		case v.CanUint():
			v.SetUint(uint64(n))
		default:
			t.Fatalf("%s: a %s has no values here yet", path, v.Type())
		}
	})
	return x
}

// fields calls f for each field below v that has none of its own. Pointers and slices on the way
// get one element.
func fields(v reflect.Value, path string, f func(path string, v reflect.Value)) {
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fields(v.Elem(), path, f)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fields(v.Index(0), path, f)
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			fields(v.Index(i), fmt.Sprintf("%s.%d", path, i), f)
		}
	case v.Kind() == reflect.Struct && v.Type().Field(0).IsExported():
		for i := range v.NumField() {
			fields(v.Field(i), strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), f)
		}
	default:
		f(path, v)
	}
}
