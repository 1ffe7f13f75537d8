// SPDX-License-Identifier: Apache-2.0

package file_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
)

// field is one of kube-proxy's fields.
type field struct {
	kind    config.Kind
	pointer bool
}

// kinds are the types of kube-proxy's fields that are no structs to us.
var kinds = map[reflect.Type]config.Kind{
	reflect.TypeFor[metav1.Duration]():              config.Duration,
	reflect.TypeFor[logsapi.TimeOrMetaDuration]():   config.Interval,
	reflect.TypeFor[logsapi.VModuleConfiguration](): config.Modules,
	reflect.TypeFor[resource.QuantityValue]():       config.Quantity,
	reflect.TypeFor[map[string]bool]():              config.Map,
	reflect.TypeFor[[]string]():                     config.List,
}

// walk collects the fields of a struct by their paths.
func walk(t *testing.T, typ reflect.Type, path string, into map[string]field) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type == reflect.TypeFor[metav1.TypeMeta]() {
			continue
		}
		if name != "" {
			name = strings.TrimPrefix(path+"."+name, ".")
		} else if f.Anonymous { // "inline" in its tag or not, as encoding/json has it
			name = path
		}
		ft, pointer := f.Type, f.Type.Kind() == reflect.Pointer
		if pointer {
			ft = ft.Elem()
		}
		k, known := kinds[ft]
		switch {
		case known:
		case ft.Kind() == reflect.Struct:
			walk(t, ft, name, into)
			continue
		case ft.Kind() == reflect.Bool:
			k = config.Bool
		case ft.Kind() == reflect.Int32 || ft.Kind() == reflect.Uint32:
			k = config.Int
		case ft.Kind() == reflect.Float32:
			k = config.Number
		case ft.Kind() == reflect.String:
			k = config.Text
		default:
			t.Errorf("%s: %v: this test does not know the type", name, ft)
		}
		into[name] = field{k, pointer}
	}
}

// The list of settings has each of kube-proxy's fields, and no other, with its
// kind, and knows where 0 is a value.
func TestFieldsAreKubeProxys(t *testing.T) {
	theirs := map[string]field{}
	walk(t, reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "", theirs)
	if len(theirs) < 55 {
		t.Fatalf("only %d fields found", len(theirs))
	}
	var c config.Config
	for _, s := range config.Settings() {
		if s.Path == "" {
			continue
		}
		f, ok := theirs[s.Path]
		delete(theirs, s.Path)
		if got := s.Value(&c).Kind; !ok || got != f.kind || s.ZeroCounts != f.pointer {
			t.Errorf("%s: %s, zero counts %t; kube-proxy has %+v (%t)", s.Path, got, s.ZeroCounts, f, ok)
		}
	}
	for path := range theirs {
		t.Errorf("%s has no setting", path)
	}
}

// What is written is what kube-proxy reads: strictly, and with its defaults but
// for those that are documented to differ.
func TestDefaultsAreKubeProxys(t *testing.T) {
	want, err := os.ReadFile("testdata/kube-proxy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	var ours, theirs v1alpha1.KubeProxyConfiguration
	for _, explained := range []bool{false, true} {
		if err := yaml.UnmarshalStrict(file.Render(&c, explained), &ours); err != nil {
			t.Fatal(err)
		}
	}
	if err := yaml.UnmarshalStrict(want, &theirs); err != nil {
		t.Fatal(err)
	}
	off := false
	theirs.IPTables.LocalhostNodePorts = &off
	theirs.IPTables.MinSyncPeriod.Duration, theirs.NFTables.MinSyncPeriod.Duration = 0, 0
	theirs.DetectLocalMode = "ClusterCIDR"        // set later in kube-proxy
	theirs.Winkernel.RootHnsEndpointName = "cbr0" // the flag's default in kube-proxy
	a, _ := yaml.Marshal(ours)
	b, _ := yaml.Marshal(theirs)
	if !slices.Equal(a, b) {
		t.Errorf("ours:\n%s\nkube-proxy's:\n%s", a, b)
	}
}

// agreed compares a text that we take without complaint with what kube-proxy's
// own types make of it.
func agreed(t *testing.T, text []byte) {
	t.Helper()
	var theirs v1alpha1.KubeProxyConfiguration
	if err := yaml.UnmarshalStrict(text, &theirs); err != nil {
		t.Errorf("we take what kube-proxy refuses: %v\n%s", err, text)
	}
}
