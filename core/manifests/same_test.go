// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Objects that differ in any field that a source sets are not the same: a change of it
// must be reported.
func TestEveryFieldMatters(t *testing.T) {
	differ(t, map[string]bool{"Where": true, "Version": true}, func(a, b *model.Service) bool { return model.Same(a, b) })
	differ(t, map[string]bool{"Where": true, "Version": true}, func(a, b *model.Slice) bool { return model.Same(a, b) })
	differ(t, map[string]bool{"Where": true, "Version": true}, func(a, b *model.Route) bool { return model.Same(a, b) })
	differ(t, map[string]bool{"Where": true}, func(a, b *model.Grant) bool { return model.Same(a, b) })
	differ(t, map[string]bool{"Warm": true}, func(a, b *model.SliceEndpoint) bool { return model.Same(a, b) })
}

// differ changes each field of a T but those that do not matter.
func differ[T any](t *testing.T, but map[string]bool, same func(a, b *T) bool) {
	t.Helper()
	of := reflect.TypeFor[T]()
	for i := range of.NumField() {
		if but[of.Field(i).Name] {
			continue
		}
		var a, b T
		set(reflect.ValueOf(&b).Elem().Field(i))
		if same(&a, &b) {
			t.Errorf("%s.%s does not matter", of.Name(), of.Field(i).Name)
		}
	}
}

// set gives a value another value than its zero.
func set(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(1)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.String:
		v.SetString("x")
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		switch v.Interface().(type) {
		case time.Time:
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
		case netip.Addr:
			v.Set(reflect.ValueOf(netip.IPv6Loopback()))
		default:
			set(v.Field(0))
		}
	}
}
