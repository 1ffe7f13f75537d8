// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tandem-proxy/tandem/core/model"
)

const (
	head  = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
	named = "apiVersion: v1\nkind: Service\n"
	cidr  = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: more}\n"
	label = ` must be lower-case letters, digits and '-', at most 63 (RFC 1123 label)`
	helm  = ` is a Helm template: render it first, with ` + "`helm template`"
)

// TestBadDocuments puts a bad document, from line 4 on, between two good ones,
// which must not suffer.
func TestBadDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"half-written":             {head + "spec:\n  clusterIP: 10.96.0.1\n  por", []string{"9: document: could not find expected ':'"}},
		"half a list":              {head + "spec:\n  ports: [", []string{"8: document: did not find expected node content"}},
		"half a string":            {head + "spec:\n  clusterIP: \"10.96", []string{"8: document: found unexpected end of stream"}},
		"tab":                      {head + "spec:\n\tclusterIP: 10.96.0.1", []string{"8: document: a tab in the indentation: YAML needs spaces"}},
		"indentation":              {head + "spec:\n  ports:\n  - port: 80\n   name: x", []string{"8: document: did not find expected key"}},
		"control":                  {head + "a: \x01", []string{"7: document: control characters are not allowed"}},
		"duplicate":                {head + "spec:\n  clusterIP: 10.96.0.1\nspec: {}\n", []string{"9: Service default/web: spec: duplicate key, first in line 7"}},
		"many duplicates":          {head + "spec: {selector: {" + letters() + ", a0: b}}", []string{"7: Service default/web: a0: duplicate key, first in line 7"}},
		"unknown field":            {head + "spec:\n  clusterIp: 10.96.0.1\n  prots: []", []string{"8: Service default/web: spec.clusterIp: unknown field, did you mean clusterIP?", "9: Service default/web: spec.prots: unknown field"}},
		"string for number":        {head + "spec:\n  ports:\n  - port: http", []string{`9: Service default/web: spec.ports[0].port: "http" is a string, must be a whole number`}},
		"fraction":                 {head + "spec: {ports: [{port: 80.5}]}", []string{`7: Service default/web: spec.ports[0].port: "80.5" is a fraction, must be a whole number`}},
		"too large":                {head + "spec: {ports: [{port: 99999999999}]}", []string{`7: Service default/web: spec.ports[0].port: "99999999999" is a number, out of range`}},
		"not a number":             {head + "spec: {ports: [{port: .nan}]}", []string{`7: Service default/web: ".nan" is not a finite number`}},
		"list for number":          {head + "spec: {ports: [{port: [1]}]}", []string{"7: Service default/web: spec.ports[0].port: is a list, must be a whole number"}},
		"number for string":        {head + "spec: {clusterIP: 10.96}", []string{`7: Service default/web: spec.clusterIP: "10.96" is a fraction, must be a string: put it in quotes`}},
		"bool for string":          {head + "spec: {selector: {a: yes}}", []string{`7: Service default/web: spec.selector.a: "yes" is a boolean in YAML 1.1, must be a string: put it in quotes`}},
		"n for string":             {head + "spec: {selector: {a: n}}", []string{`7: Service default/web: spec.selector.a: "n" is a boolean in YAML 1.1, must be a string: put it in quotes`}},
		"bool for key":             {head + "spec: {selector: {on: a}}", []string{`7: Service default/web: a key must be a string, but this one "on" is a boolean in YAML 1.1: put it in quotes`}},
		"number for key":           {head + "spec: {selector: {0x10: a}}", []string{`7: Service default/web: a key must be a string, but this one "0x10" is a number: put it in quotes`}},
		"string for bool":          {head + "spec: {publishNotReadyAddresses: maybe}", []string{`7: Service default/web: spec.publishNotReadyAddresses: "maybe" is a string, must be true or false`}},
		"list for object":          {head + "spec: []", []string{"7: Service default/web: spec: is a list, must be an object"}},
		"object for list":          {head + "spec: {ports: {port: 80}}", []string{"7: Service default/web: spec.ports: is an object, must be a list"}},
		"object for int or string": {head + "spec: {ports: [{targetPort: {}}]}", []string{"7: Service default/web: spec.ports[0].targetPort: is an object, not a valid IntOrString"}},
		"time":                     {named + "metadata: {name: web, creationTimestamp: now}", []string{`6: Service default/web: metadata.creationTimestamp: "now" is a string, not a valid Time`}},

		"bad range":        {cidr + "spec:\n  cidrs:\n  - 10.96.0.0/12\n  - 10.96.0.0/40", []string{"10: ServiceCIDR more: spec.cidrs[1]: 10.96.0.0/40: invalid CIDR"}},
		"range for ranges": {cidr + "spec: {cidrs: 10.96.0.0/12}", []string{`7: ServiceCIDR more: spec.cidrs: "10.96.0.0/12" is a string, must be a list`}},
		"range by address": {cidr + "spec: {cidrs: [10.96.0.0]}", []string{"7: ServiceCIDR more: spec.cidrs[0]: 10.96.0.0: invalid CIDR"}},
		"mapped range":     {cidr + "spec: {cidrs: ['::ffff:10.96.0.0/108']}", []string{"7: ServiceCIDR more: spec.cidrs[0]: ::ffff:10.96.0.0/108: invalid CIDR"}},
		"range's field":    {cidr + "spec: {cidr: [10.96.0.0/12]}", []string{"7: ServiceCIDR more: spec.cidr: unknown field"}},
		"range's version":  {"apiVersion: networking.k8s.io/v1beta1\nkind: ServiceCIDR", []string{`4: document: apiVersion: "networking.k8s.io/v1beta1" is not read for kind ServiceCIDR: use networking.k8s.io/v1`}},

		"apiVersion v2":  {"apiVersion: v2\nkind: Service\nmetadata: {name: web}", []string{`4: document: apiVersion: "v2" is not read for kind Service: use v1`}},
		"beta":           {"kind: EndpointSlice\napiVersion: discovery.k8s.io/v1beta1", []string{`5: document: apiVersion: "discovery.k8s.io/v1beta1" is not read for kind EndpointSlice: use discovery.k8s.io/v1`}},
		"lower case":     {"apiVersion: v1\nkind: service", []string{`5: document: kind: "service" is unknown: did you mean Service?`}},
		"plural":         {"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlices", []string{`5: document: kind: "EndpointSlices" is unknown: did you mean EndpointSlice?`}},
		"Endpoints":      {"apiVersion: v1\nkind: Endpoints", []string{"5: document: kind: Endpoints are not read: write an EndpointSlice of discovery.k8s.io/v1"}},
		"no apiVersion":  {"kind: Service", []string{"4: document: apiVersion: missing"}},
		"no kind":        {"apiVersion: v1", []string{"4: document: kind: missing"}},
		"odd kind":       {"apiVersion: v1\nkind: [Service]", []string{"5: document: kind: is a list, must be a string"}},
		"values.yaml":    {"image: x\nreplicas: 3", []string{"4: document: no Kubernetes object: it has neither apiVersion nor kind"}},
		"a list":         {"- a\n- b", []string{"4: document: is a list, must be an object with apiVersion and kind"}},
		"prose":          {"hello world", []string{`4: document: "hello world" is a string, must be an object with apiVersion and kind`}},
		"null":           {"~", []string{"4: document: is empty, must be an object with apiVersion and kind"}},
		"list of what":   {"apiVersion: v1\nkind: List\nitems: 7", []string{`6: document: items: "7" is a number, must be a list`}},
		"list of a list": {"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List}]", []string{"6: document: a List within a List is not read"}},

		"Helm value":   {named + "metadata:\n  name: {{ .Values.name }}", []string{`7: document: "{{ .Values.name }}"` + helm}},
		"Helm quoted":  {named + "metadata:\n  name: \"{{ .Values.name }}\"", []string{`7: document: "{{ .Values.name }}"` + helm}},
		"Helm if":      {"{{- if .Values.x }}\n" + head + "{{- end }}", []string{`4: document: "{{- if .Values.x }}"` + helm}},
		"Helm include": {head + "spec:\n  selector: {{ include \"x\" . | nindent 4 }}", []string{`8: document: "{{ include \"x\" . | nindent 4 }}"` + helm}},
		"Go template elsewhere": {
			named + "metadata: {name: web, annotations: {a: '{{ .Host }}'}}\nspec: {prots: 1}",
			[]string{"7: Service default/web: spec.prots: unknown field"},
		},

		"no metadata":    {named, []string{"4: document: metadata.name: missing"}},
		"generated name": {named + "metadata:\n  generateName: x-", []string{"6: document: metadata.name: missing"}},
		"name quotes":    {named + "metadata:\n  name: 'a\"; }'", []string{`7: document: metadata.name: "a\"; }"` + label}},
		"name newline":   {named + `metadata: {name: "a\nb"}`, []string{`6: document: metadata.name: "a\nb"` + label}},
		"name escape":    {named + `metadata: {name: "a\e[31m"}`, []string{`6: document: metadata.name: "a\x1b[31m"` + label}},
		"name long":      {named + "metadata: {name: " + strings.Repeat("x", 300) + "}", []string{`6: document: metadata.name: "` + strings.Repeat("x", 60) + `"...` + label}},
		"name number":    {named + "metadata: {name: 7}", []string{`6: document: metadata.name: "7" is a number, must be a string: put it in quotes`}},
		"namespace":      {named + "metadata: {name: web, namespace: A_B}", []string{`6: document: metadata.namespace: "A_B"` + label}},

		"alias cycle":     {head + "spec: &a {selector: *a}", []string{"7: document: nested deeper than 64 levels"}},
		"alias bomb":      {head + bomb(), []string{"7: document: its aliases expand to more than can be read"}},
		"merge bomb":      {head + mergeBomb(), []string{"7: document: its aliases expand to more than can be read"}},
		"unknown anchor":  {head + "spec: *nope", []string{"7: document: unknown anchor 'nope' referenced"}},
		"merge a number":  {head + "<<: 7", []string{"7: Service default/web: <<: only mappings can be merged"}},
		"hidden document": {head + "spec: {clusterIP: 10.96.0.1}\u2028---\u2028a: b", []string{"4: document: has data after its end"}},
		"unknown tag":     {head + "spec: !foo {}", []string{`7: Service default/web: the tag "!foo" is unknown`}},
		"binary":          {head + "spec: {clusterIP: !!binary aGk=}", []string{"7: Service default/web: the tag !!binary is not supported"}},
		"list as key":     {head + "spec: {? [a] : b}", []string{"7: Service default/web: a key must be a string, but this one is a list"}},
		"null as key":     {head + "spec: {~: b}", []string{"7: Service default/web: a key must be a string, but this one is empty"}},
		"deep":            {head + "spec: " + strings.Repeat("[", 80) + strings.Repeat("]", 80), []string{"7: document: nested deeper than 64 levels"}},
		"very deep":       {head + "spec: " + strings.Repeat("[", 20_000), []string{"7: document: exceeded max depth of 10000"}},
		"deep indent":     {head + "spec: " + strings.Repeat("- ", 100), []string{"7: document: block sequence entries are not allowed in this context"}},
		"large":           {head + "x: " + strings.Repeat("y", 3<<20), []string{"4: document: larger than 2097152 bytes"}},

		"JSON syntax":    {"{\"apiVersion\": \"v1\",\n \"kind\": \"Service\",\n \"metadata\": {]}}", []string{`6: document: invalid character ']' looking for beginning of object key string`}},
		"JSON duplicate": {"{\"apiVersion\": \"v1\", \"kind\": \"Service\", \"metadata\": {\"name\": \"web\"},\n\"metadata\": {\"name\": \"x\"}}", []string{"5: Service default/web: metadata: duplicate key, first in line 4"}},
		"JSON field":     {"{\"apiVersion\": \"v1\", \"kind\": \"Service\", \"metadata\": {\"name\": \"web\"},\n\"spec\": {\"prots\": 1}}", []string{"5: Service default/web: spec.prots: unknown field"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := svc("before") + "---\n---\n" + c.text + "\n---\n" + svc("after")
			objects, problems, _ := readFiles(t, map[string]string{"x.yaml": text})
			for i := range c.want {
				c.want[i] = "x.yaml:" + c.want[i]
			}
			equal(t, "problems", problems, c.want)
			after := 5 + strings.Count(c.text, "\n") + 1
			equal(t, "objects", objects, []string{"default/before x.yaml:1", fmt.Sprintf("default/after x.yaml:%d", after)})
		})
	}
}

func letters() string {
	var s []string
	for i := range 40 {
		s = append(s, fmt.Sprintf("a%d: b", i))
	}
	return strings.Join(s, ", ")
}

// bomb is the "billion laughs".
func bomb() string {
	s := "x: {a: &a [1,1,1,1,1,1,1,1,1]"
	for i := range 9 {
		p, n := string(rune('a'+i)), string(rune('b'+i))
		s += fmt.Sprintf(", %s: &%s [%s]", n, n, strings.TrimSuffix(strings.Repeat("*"+p+",", 9), ","))
	}
	return s + "}"
}

// mergeBomb grows nothing but the work of finding out.
func mergeBomb() string {
	var s strings.Builder
	s.WriteString("x: {a: &a {")
	for i := range 10_000 {
		fmt.Fprintf(&s, "k%d: 1, ", i)
	}
	s.WriteString("}, b: {<<: [")
	s.WriteString(strings.Repeat("*a, ", 10_000))
	s.WriteString("]}}")
	return s.String()
}

// TestNotes has manifests that are read in part: the rest of the object counts.
func TestNotes(t *testing.T) {
	objects, problems, r := readFiles(t, map[string]string{"x.yaml": head + `spec:
  type: NodePort
  clusterIP: 10.96.0.1
  externalIPs:
  - 203.0.113.1
  - 127.0.0.1
  ports:
  - port: 70000
    nodePort: 1
  - port: 80
---
apiVersion: v1
kind: Service
metadata: {name: unassigned}
spec:
  ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: e, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints:
- addresses: [10.244.1.2]
- addresses:
  - 169.254.169.254
`})
	equal(t, "problems", problems, []string{
		"x.yaml:9: Service default/web: spec.externalIPs[1]: 127.0.0.1 (loopback): not usable as an endpoint or virtual IP",
		"x.yaml:11: Service default/web: spec.ports[0].port: 70000 (not within 1..65535, port ignored): invalid",
		"x.yaml:13: Service default/web: spec.ports[1].nodePort: missing: there is no API server here that would assign one",
		"x.yaml:18: Service default/unassigned: spec.clusterIP: missing: there is no API server here that would assign one",
		"x.yaml:38: EndpointSlice default/e: endpoints[1].addresses[0]: 169.254.169.254 (link-local): not usable as an endpoint or virtual IP",
	})
	equal(t, "objects", objects, []string{"default/web x.yaml:1", "default/e x.yaml:31"})
	if name, ok := r.Problems[4].Model().Service(); !ok || name.String() != "default/web" {
		t.Errorf("the slice's problem is one of %v", name)
	}
	if got := r.Problems[0].Model().String(); got != problems[0] {
		t.Errorf("as a problem of the model: %s", got)
	}
}

// What is wrong with an EndpointSlice is a problem of its Service, also where all of it is rejected.
func TestProblemsOfSlicesAreTheirServices(t *testing.T) {
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: e, labels: {kubernetes.io/service-name: web}}\n"
	for name, text := range map[string]string{
		"unknown field":   slice + "addressType: IPv4\nendpoint: []\n",
		"no address type": slice + "endpoints: []\n",
		"an endpoint":     slice + "addressType: IPv4\nendpoints: [{addresses: [127.0.0.1]}]\n",
		"twice":           slice + "addressType: IPv4\nendpoints: []\n---\n" + slice + "addressType: IPv4\nendpoints: []\n",
		"in a list":       "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: e, labels: {kubernetes.io/service-name: web}}, addresType: IPv4}\n",
	} {
		_, problems, r := readFiles(t, map[string]string{"x.yaml": text})
		if len(problems) != 1 {
			t.Errorf("%s: %q", name, problems)
			continue
		}
		if of, ok := r.Problems[0].Model().Service(); !ok || of != (model.ServiceName{Namespace: "default", Name: "web"}) {
			t.Errorf("%s: the problem is one of %v", name, of)
		}
	}
}

// A field that this version does not know is a warning, as with an API server that is newer than the proxy. One
// that looks like a known one is a mistake: served without it, a Service that works would lose what was meant.
func TestFieldsOfANewerAPI(t *testing.T) {
	newer := strings.Replace(svc("web"), "spec: {", "spec: {\n  shadowTraffic: {percent: 5}, ", 1)
	if newer == svc("web") {
		t.Fatal(newer)
	}
	objects, problems, _ := readFiles(t, map[string]string{"x.yaml": newer})
	equal(t, "objects", objects, []string{"default/web x.yaml:1"})
	equal(t, "problems", problems, []string{"x.yaml:2: Service default/web: spec.shadowTraffic: unknown field, ignored"})
	for what, text := range map[string]string{
		"mistyped":         strings.Replace(newer, "ports:", "prots:", 1),
		"a wrong type too": strings.Replace(newer, "shadowTraffic: {percent: 5}", "shadowTraffic: 1, externalIPs: 7", 1),
		"twice":            strings.Replace(newer, "shadowTraffic: {percent: 5}", "shadowTraffic: 1, shadowTraffic: 2", 1),
		"too many":         strings.Replace(newer, "shadowTraffic: {percent: 5}", strings.ReplaceAll(letters(), "a", "shadowTraffic"), 1),
	} {
		objects, problems, _ := readFiles(t, map[string]string{"x.yaml": text})
		if len(objects) != 0 || len(problems) == 0 {
			t.Errorf("%s: %v, %v", what, objects, problems)
		}
	}
}

func TestTwice(t *testing.T) {
	objects, problems, _ := readFiles(t, map[string]string{
		"b.yaml": svc("web"), "a.yaml": "#\n" + svc("web") + "---\n" + svc("web"), "c.yaml": svc("web, namespace: other"),
	})
	equal(t, "problems", problems, []string{
		"a.yaml:4: Service default/web: defined twice: using the one in a.yaml:2",
		"b.yaml:1: Service default/web: defined twice: using the one in a.yaml:2",
	})
	equal(t, "objects", objects, []string{"default/web a.yaml:2", "other/web c.yaml:1"})
}

func TestBadText(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"NUL":          {svc("a") + "\x00", "x.yaml:2: file: has NUL bytes: save it as UTF-8 text"},
		"UTF-16, bare": {strings.ReplaceAll(svc("a"), "a", "\x00a"), "x.yaml:1: file: has NUL bytes: save it as UTF-8 text"},
		"Latin-1":      {svc("a") + "# caf\xe9\n", "x.yaml:2: file: is not UTF-8"},
		"half a rune":  {svc("a") + "# \xf0\x9f", "x.yaml:2: file: is not UTF-8"},
	} {
		_, problems, _ := readFiles(t, map[string]string{"x.yaml": c.text})
		equal(t, name, problems, []string{c.want})
	}
}

func TestBadFileNames(t *testing.T) {
	_, problems, _ := readFiles(t, map[string]string{"a\n\x1b[31m.yaml": "- x", "é b.yaml": "- x"})
	equal(t, "problems", problems, []string{
		`"a\n\x1b[31m.yaml":1: document: is a list, must be an object with apiVersion and kind`,
		`é b.yaml:1: document: is a list, must be an object with apiVersion and kind`,
	})
}

// apiVersion and kind are found wherever they are, and what is there twice is rejected, as by the
// slow path.
func TestKindWhereverItIs(t *testing.T) {
	const rest = `"metadata":{"name":"web"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}`
	for text, want := range map[string]bool{
		`{"apiVersion":"v1","kind":"Service",` + rest + `}`:                   true,
		` { "kind" : "Service" , "apiVersion" : "v1" , ` + rest + `}`:         true,
		`{` + rest + `,"kind":"Service","apiVersion":"v1"}`:                   true,
		`{"apiVersion":"v1","kind":"Serv\u0069ce",` + rest + `}`:              true,
		`{"apiVersion":"v1","kind":"Service",` + rest + `,"kind":"Node"}`:     false,
		`{"apiVersion":"v1","kind":"Service",` + rest + `,"apiVersion":"v2"}`: false,
		`{"apiVersion":"v1","apiVersion":"v1","kind":"Service",` + rest + `}`: false,
		`{"apiVersion":"v1","kind":"Service",` + rest:                         false,
		`{"apiVersion":"v1","kind":"Service","Kind":"Service",` + rest + `}`:  false,
	} {
		got, err := ReadFS(t.Context(), fstest.MapFS{"a.json": {Data: []byte(text)}})
		if err != nil || (len(got.Services) == 1) != want || !want && len(got.Problems) == 0 {
			t.Errorf("%s: %d Services, %v, %v", text, len(got.Services), got.Problems, err)
		}
	}
}
