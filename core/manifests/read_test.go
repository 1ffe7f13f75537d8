// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// readAll reads files and returns their Services and slices as "name where" and
// the problems as lines.
func readFiles(t *testing.T, files map[string]string) (objects, problems []string, r Result) {
	t.Helper()
	r, err := ReadFS(context.Background(), folderOf(files))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Services {
		objects = append(objects, s.Name.String()+" "+s.Where)
	}
	for _, s := range r.Slices {
		objects = append(objects, s.Name.String()+" "+s.Where)
	}
	for _, n := range r.Nodes {
		objects = append(objects, n.Name+" "+n.Where)
	}
	for _, p := range r.Problems {
		problems = append(problems, p.String())
	}
	return objects, problems, r
}

func folderOf(files map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fsys
}

// ignored counts the objects of other kinds in files, by kind.
func ignored(t *testing.T, files map[string]string) map[string]int {
	t.Helper()
	r := newReader(whole{folderOf(files)}, "", config.PortRange{})
	if _, err := r.scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, f := range r.files {
		for i := range f.units {
			for _, o := range f.units[i].objects {
				if o.key.class == foreign {
					found[o.key.name]++
				}
			}
		}
	}
	return found
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n  %s\nwant:\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// svc is a good Service in one line.
func svc(name string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}\n", name)
}

func TestReadWhole(t *testing.T) {
	files := map[string]string{
		"web.yaml": `# a comment
---
# another
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  publishNotReadyAddresses: yes
  ports:
  - port: 80
    targetPort: http
  - {name: s, port: 0x1bb, targetPort: 8443}
---
apiVersion: apps/v1
kind: Deployment
spec: {whatever: [1, 2]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web.1
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.2]}]
...
--- # the node
apiVersion: v1
kind: Node
metadata: {name: node-1, creationTimestamp: 2026-11-21T08:00:00Z}
spec: {podCIDR: 10.244.1.0/24}
`,
		"web.yml":       svc("a"),
		"UPPER.YAML":    svc("upper"),
		"c.json":        `{"apiVersion":"v1","kind":"ConfigMap"}` + "\n\n" + `{"apiVersion":"v1","kind":"Service","metadata":{"name":"j"},"spec":{"clusterIP":"10.96.0.2"}}`,
		"web.yaml~":     "garbage: [",
		".web.yaml.swp": "garbage: [",
		".hidden.yaml":  "garbage: [",
		"#web.yaml#":    "garbage: [",
		"notes.txt":     "garbage: [",
		"empty.yaml":    "",
		"comments.yaml": "# nothing\n\n---\n# here\n---\n",
		"sub/x.yaml":    "garbage: [",
	}
	objects, problems, r := readFiles(t, files)
	equal(t, "problems", problems, nil)
	equal(t, "objects", objects, []string{
		"default/upper UPPER.YAML:1", "default/j c.json:3", "shop/web web.yaml:4", "default/a web.yml:1",
		"default/web.1 web.yaml:19", "node-1 web.yaml:29",
	})
	if got := ignored(t, files); got["Deployment"] != 1 || got["ConfigMap"] != 1 || len(got) != 2 {
		t.Errorf("ignored %v", got)
	}
	want := []model.ServicePort{{Proto: model.TCP, Port: 80}, {Name: "s", Proto: model.TCP, Port: 443}}
	if got := r.Services[2].Ports; !slices.Equal(got, want) {
		t.Errorf("ports %+v", got)
	}
}

func TestReadLists(t *testing.T) {
	const yamlList = `apiVersion: v1
items:
- apiVersion: v1
  kind: Service
  metadata:
    name: a
  spec: {clusterIP: 10.96.0.1}
# between
- apiVersion: v1
  kind: Service
  metadata:
    name: b
    annotations:
      text: |
        items:
        - c
  spec: {clusterIP: 10.96.0.2, prots: []}
- apiVersion: v1
  kind: Pod
kind: List
metadata: {resourceVersion: ""}
---
kind: EndpointSliceList
apiVersion: discovery.k8s.io/v1
items:
  - metadata: {name: e, labels: {kubernetes.io/service-name: a}}
    addressType: IPv4
  - broken: [
  - metadata: {name: f, labels: {kubernetes.io/service-name: a}}
    addressType: IPv6
---
{kind: ServiceList, apiVersion: v1, items: [{metadata: {name: flow}, spec: {clusterIP: 10.96.0.3}}]}
---
apiVersion: v1
kind: List
items:
- &x {apiVersion: v1, kind: Service, metadata: {name: anchor}, spec: &s {clusterIP: 10.96.0.3}}
- {apiVersion: v1, kind: Service, metadata: {name: alias}, spec: *s}
---
apiVersion: v1
kind: List
items: []
---
apiVersion: v1
kind: List
`
	const jsonList = `{
  "apiVersion": "v1", "kind": "NodeList", "metadata": {},
  "items": [
    {"metadata": {"name": "n1"}},
    {"metadata": {"name": "n2"},
     "spec": {"podCIDR": 7}}
  ]
}
`
	files := map[string]string{"l.yaml": yamlList, "n.json": jsonList}
	objects, problems, _ := readFiles(t, files)
	equal(t, "problems", problems, []string{
		"l.yaml:17: Service default/b: spec.prots: unknown field",
		"l.yaml:28: document: did not find expected node content",
		`n.json:6: Node n2: spec.podCIDR: "7" is a number, must be a string: put it in quotes`,
	})
	equal(t, "objects", objects, []string{
		"default/a l.yaml:3", "default/flow l.yaml:32", "default/anchor l.yaml:37", "default/alias l.yaml:38",
		"default/e l.yaml:26", "default/f l.yaml:29", "n1 n.json:4",
	})
	if got := ignored(t, files); got["Pod"] != 1 {
		t.Errorf("ignored %v", got)
	}
}

// TestReadEncodings has the same Service in all the ways in which editors save.
func TestReadEncodings(t *testing.T) {
	text := strings.ReplaceAll(`apiVersion: v1
kind: Service
metadata: {name: web, annotations: {say: "hé 🙂"}}
spec: {clusterIP: 10.96.0.1}
---
apiVersion: v1
kind: Service
metadata: {name: bad}
spec: {clusterIPX: 10.96.0.1}
`, "\n", "\r\n")
	for name, data := range map[string]string{
		"CRLF": text, "BOM": "\xEF\xBB\xBF" + text, "UTF-16LE": utf16Text(text, false), "UTF-16BE": utf16Text(text, true),
		"old Mac": strings.ReplaceAll(text, "\r\n", "\r"), "empty line in front": "\r\n" + text,
	} {
		objects, problems, _ := readFiles(t, map[string]string{"a.yaml": data})
		skip := 0
		if name == "empty line in front" {
			skip = 1
		}
		equal(t, name, objects, []string{fmt.Sprintf("default/web a.yaml:%d", 1+skip)})
		equal(t, name, problems, []string{fmt.Sprintf("a.yaml:%d: Service default/bad: spec.clusterIPX: unknown field", 9+skip)})
	}
}

func utf16Text(s string, big bool) string {
	var b strings.Builder
	put := func(u uint16) {
		if big {
			b.WriteByte(byte(u >> 8))
			b.WriteByte(byte(u))
		} else {
			b.WriteByte(byte(u))
			b.WriteByte(byte(u >> 8))
		}
	}
	put(0xFEFF)
	for _, r := range s {
		if r >= 0x10000 {
			put(uint16(0xD800 + (r-0x10000)>>10))
			put(uint16(0xDC00 + (r-0x10000)&0x3FF))
		} else {
			put(uint16(r))
		}
	}
	return b.String()
}

// TestSurrogates reads JSON with a character beyond 16 bits, escaped as kubectl's
// and every other encoder of ASCII does it, the long way: it has an unknown field.
func TestSurrogates(t *testing.T) {
	const text = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","annotations":{"x":"\\u005c \ud83d\ude00 \ud83d \u00e9"}},
"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80,"nodePort":30080}]}}`
	r, err := ReadFS(t.Context(), fstest.MapFS{"x.json": {Data: []byte(text)}})
	if err != nil || len(r.Services) != 1 || len(r.Problems) != 1 || r.Problems[0].Line != 2 {
		t.Fatalf("%d services, %v", len(r.Services), r.Problems)
	}
}
