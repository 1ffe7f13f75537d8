// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

// A configuration that is read again changes no field, whatever was set: neither what its
// text does not tell, such as a host name that nothing overrides, nor what one setting does
// to others.
func TestMergeWithTheSameChangesNothing(t *testing.T) {
	preset := config.Default()
	host := config.Default()
	host.NodeName, host.NodeIsHost = "machine", true
	moved := config.Default()
	moved.NodeIP, moved.HealthAddress, moved.HTTPAddress = netip.IPv6Loopback(), "192.0.2.1:1", ""
	var full config.Config
	fill(t, reflect.ValueOf(&full).Elem(), "Config")
	for name, c := range map[string]*config.Config{"default": &preset, "host name": &host, "IPv6": &moved, "all": &full} {
		again := *c
		if diff := fieldsDiffer(c, config.Merge(c, &again)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Each field of a merged configuration is of the new one, except for what needs a restart:
// that is of the running one, with all of its fields.
func TestMergeTakesWholeSettings(t *testing.T) {
	running := config.Default()
	running.NodeName, running.NodeIsHost = "machine", true
	var next config.Config
	fill(t, reflect.ValueOf(&next).Elem(), "Config")
	next.Mode, next.NodeIsHost = running.Mode, false
	merged := config.Merge(&running, &next)
	if merged.NodeName != "machine" || !merged.NodeIsHost {
		t.Errorf("node %q, host %t", merged.NodeName, merged.NodeIsHost)
	}
	kept := 0
	for _, s := range config.Settings() {
		want := &next
		if s.Restart != "" {
			want, kept = &running, kept+1
		}
		if s.Deprecated != "" {
			continue // that of another setting
		}
		if got := s.Value(merged).String(); got != s.Value(want).String() {
			t.Errorf("%s: %q, want %q (restart: %q)", s.Name(), got, s.Value(want), s.Restart)
		}
	}
	if kept < 30 {
		t.Errorf("only %d settings need a restart", kept)
	}
}

// fieldsDiffer names the fields in which two configurations differ.
func fieldsDiffer(a, b *config.Config) string {
	var all []string
	va, vb := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range va.NumField() {
		x, y := va.Field(i).Interface(), vb.Field(i).Interface()
		if !reflect.DeepEqual(x, y) {
			all = append(all, fmt.Sprintf("%s: %+v became %+v", va.Type().Field(i).Name, x, y))
		}
	}
	return strings.Join(all, "; ")
}

// fill gives each field a value that is not zero.
func fill(t *testing.T, v reflect.Value, name string) {
	t.Helper()
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("2001:db8::1")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("2001:db8::/32")))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint16:
		v.SetUint(7)
	case reflect.Float32:
		v.SetFloat(7)
	case reflect.String:
		v.SetString("set")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), name)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0), name)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string][]string{"featureGates": {"A=true"}}))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), name+"."+v.Type().Field(i).Name)
		}
	default:
		t.Fatalf("%s is a %s: what to fill it with?", name, v.Kind())
	}
}
