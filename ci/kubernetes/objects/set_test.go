// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func read(t *testing.T, files map[string]string) (Set, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Read(dir)
}

func TestRead(t *testing.T) {
	s, err := read(t, map[string]string{
		"a.yaml": `# a comment
---
apiVersion: v1
kind: Service
metadata: {name: web, uid: "7", resourceVersion: "8"}
spec: {clusterIP: 10.96.0.10}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
---
apiVersion: example.org/v1
kind: Gadget
metadata: {name: web}
`,
		"b.json": `{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}},
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "web-1", "namespace": "team"}, "addressType": "IPv4", "endpoints": []},
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.99"}}]}`,
		"c.txt": "kind: Service",
		"d.yaml": `apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TCPRoute
metadata: {name: web}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
`,
	})
	if err != nil {
		t.Fatal(err)
	}
	names := slices.Concat(slices.Sorted(maps.Keys(s["Service"])), slices.Sorted(maps.Keys(s["EndpointSlice"])), slices.Sorted(maps.Keys(s["Node"])),
		slices.Sorted(maps.Keys(s["TCPRoute"])))
	if got := strings.Join(names, " "); got != "default/web team/web-1 node-1 default/web" {
		t.Errorf("got %s", got)
	}
	web := s["Service"]["default/web"]
	if ip, _, _ := unstructured.NestedString(web.Object, "spec", "clusterIP"); web.GetUID() != "" || web.GetResourceVersion() != "" || ip != "10.96.0.10" {
		t.Errorf("got %+v", web)
	}
}

func TestReadRefuses(t *testing.T) {
	for _, text := range []string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIp: 10.96.0.10}\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: web\n",
		"not an object",
	} {
		_, err := read(t, map[string]string{"a.yaml": text})
		var rejected *RejectedError
		if !errors.As(err, &rejected) || rejected.Object != "a.yaml" {
			t.Errorf("%q: %v", text, err)
		}
	}
}
