// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	strictjson "sigs.k8s.io/json"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/strictyaml"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// decoder decodes documents. It keeps nothing of their text.
type decoder struct{ limits limits }

// decode returns the objects of a document: one, or several if it is a list
// that could not be cut into its items. It always returns at least one.
func (d decoder) decode(doc document) []*object {
	if len(doc.text) > d.limits.docBytes {
		return []*object{rejected(key{}, fault{
			text: fmt.Sprintf("larger than %d bytes", d.limits.docBytes),
		})}
	}
	if o := d.decodePlain(doc); o != nil {
		return []*object{o}
	}
	root, bad := parse(doc.text)
	if bad != nil {
		if template.Match(doc.text) {
			bad = unrendered(doc.text)
		}
		return []*object{rejected(key{}, *bad)}
	}
	if doc.item && root.Kind == yaml.SequenceNode && len(root.Content) == 1 {
		root = root.Content[0] // it was cut out together with its dash
	}
	objects := d.decodeNode(root, doc.kind, 0)
	for _, o := range objects {
		if o.bad && slices.ContainsFunc(o.faults, func(f fault) bool { return template.Match(lineOf(doc.text, f.line)) }) {
			*o = *rejected(key{}, *unrendered(doc.text))
		}
	}
	clamp(objects, strictyaml.LineAt(doc.text, len(doc.text)))
	return objects
}

// clamp keeps lines within a document: YAML counts line breaks that editors do not
// (U+0085, U+2028, U+2029).
func clamp(objects []*object, last int) {
	for _, o := range objects {
		o.start = min(o.start, int32(last))
		for i := range o.faults {
			o.faults[i].line = min(o.faults[i].line, last)
		}
	}
}

// rejected returns a rejected object.
func rejected(k key, faults ...fault) *object {
	o := &object{key: k, bad: true, faults: faults}
	for i := range o.faults {
		if o.faults[i].object == "" {
			o.faults[i].object = "document"
			if k != (key{}) {
				o.faults[i].object = k.String()
			}
		}
	}
	return o
}

// decodePlain is the fast path for valid JSON and for plain YAML. It returns nil for all
// other documents, and for objects with faults: the slow path finds their lines.
func (d decoder) decodePlain(doc document) *object {
	text := bytes.TrimSpace(doc.text)
	if len(text) == 0 {
		return nil
	}
	start := bytes.IndexByte(doc.text, text[0])
	if text[0] != '{' {
		var ok bool
		if text, ok = strictyaml.Plain(doc.text); !ok {
			return nil
		}
	}
	if doc.item && text[0] == '[' { // it was cut out together with its dash
		text = text[1 : len(text)-1]
	}
	o := d.decodeJSON(text, doc.kind)
	if o != nil {
		o.start = int32(strictyaml.LineAt(doc.text, start))
	}
	return o
}

func (d decoder) decodeJSON(text []byte, kind string) *object {
	head := firstMembers(text)
	c, _, _ := classify(head.APIVersion, head.Kind)
	if !c.typed() {
		head = metav1.TypeMeta{}
		if strictjson.UnmarshalCaseSensitivePreserveInts(text, &head) != nil {
			return nil
		}
		if head.Kind == "" && head.APIVersion == "" && kind != "" {
			head.Kind, head.APIVersion = kind, apiVersionOf(kind)
		}
		c, _, _ = classify(head.APIVersion, head.Kind)
	}
	switch {
	case c == foreign:
		return ofKind(head.Kind)
	case !c.typed():
		return nil
	}
	into := newTyped(c)
	if strict, err := strictjson.UnmarshalStrict(text, into); err != nil || len(strict) > 0 {
		return nil // among others where apiVersion or kind is there twice
	}
	o := convert(c, into, &d.limits)
	if len(o.faults) > 0 {
		return nil
	}
	return o
}

// firstMembers returns apiVersion and kind where these are the first two members of an object
// in JSON, as nearly always: to decode all of it once more for them took a sixth of the
// time of reading. Else both are empty.
func firstMembers(text []byte) (head metav1.TypeMeta) {
	var names, values [2]string
	rest := text
	for i := range 2 {
		var ok [4]bool
		rest, ok[0] = cutPunct(rest, "{,"[i])
		names[i], rest, ok[1] = cutString(rest)
		rest, ok[2] = cutPunct(rest, ':')
		values[i], rest, ok[3] = cutString(rest)
		if ok != [4]bool{true, true, true, true} {
			return metav1.TypeMeta{}
		}
	}
	switch names {
	case [...]string{"apiVersion", "kind"}:
		return metav1.TypeMeta{APIVersion: values[0], Kind: values[1]}
	case [...]string{"kind", "apiVersion"}:
		return metav1.TypeMeta{APIVersion: values[1], Kind: values[0]}
	}
	return head
}

// cutPunct cuts a character off the beginning of JSON.
func cutPunct(text []byte, c byte) (rest []byte, ok bool) {
	text = bytes.TrimLeft(text, " \t\r\n")
	if len(text) == 0 || text[0] != c {
		return text, false
	}
	return text[1:], true
}

// cutString cuts a string off the beginning of JSON, if it has nothing to be unescaped.
func cutString(text []byte) (s string, rest []byte, ok bool) {
	text, ok = cutPunct(text, '"')
	n := bytes.IndexByte(text, '"')
	if !ok || n < 0 || bytes.ContainsFunc(text[:n], func(r rune) bool { return r < ' ' || r > '~' || r == '\\' }) {
		return "", text, false
	}
	return string(text[:n]), text[n+1:], true
}

// decodeNode decodes a parsed document, or an item of a list in it.
func (d decoder) decodeNode(n *yaml.Node, kind string, depth int) []*object {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return []*object{rejected(key{}, fault{line: n.Line - 1, text: strictyaml.Describe(n) + ", must be an object with apiVersion and kind"})}
	}
	apiVersion, own := strictyaml.String(n, "apiVersion"), strictyaml.String(n, "kind")
	if own == "" && apiVersion == "" && kind != "" {
		apiVersion, own = apiVersionOf(kind), kind
	}
	c, field, why := classify(apiVersion, own)
	switch c {
	case foreign:
		return []*object{ofKind(own)}
	case mistaken:
		return []*object{rejected(key{}, mistake(n, field, why))}
	case list:
		return d.decodeList(n, own, depth)
	}
	o := d.decodeObject(n, c)
	o.start = int32(n.Line - 1)
	return []*object{o}
}

func mistake(n *yaml.Node, field, why string) fault {
	if field == "" {
		return fault{line: n.Line - 1, text: why}
	}
	if v := strictyaml.Get(n, field); v != nil && strictyaml.String(n, field) == "" {
		why = strictyaml.Describe(v) + ", must be a string"
	}
	return fault{line: strictyaml.Line(n, field), text: field + ": " + why}
}

// decodeList decodes the items of a list that was not split. A list within a list is
// rejected.
func (d decoder) decodeList(n *yaml.Node, kind string, depth int) []*object {
	item, _ := itemKind(kind)
	items := strictyaml.Get(n, "items")
	switch {
	case depth > 0:
		return []*object{rejected(key{}, fault{line: n.Line - 1, text: "a List within a List is not read"})}
	case items == nil || items.ShortTag() == "!!null":
		return []*object{ofKind(kind)}
	case items.Kind != yaml.SequenceNode:
		return []*object{rejected(key{}, fault{line: items.Line - 1, text: "items: " + strictyaml.Describe(items) + ", must be a list"})}
	}
	objects := []*object{ofKind(kind)}
	for _, i := range items.Content {
		objects = append(objects, d.decodeNode(i, item, depth+1)...)
	}
	return objects
}

// decodeObject decodes an object of a kind that we read.
func (d decoder) decodeObject(n *yaml.Node, c class) *object {
	into := newTyped(c)
	faults, halted := strictyaml.Decode(n, into, d.limits.yaml)
	switch {
	case halted:
		return rejected(key{}, asFaults(faults)...)
	case slices.ContainsFunc(faults, func(f strictyaml.Fault) bool { return !f.Newer }):
		return rejectedNode(n, c, asFaults(faults))
	}
	o := convert(c, into, &d.limits)
	o.findLines(n)
	for _, f := range asFaults(faults) { // of a newer API: a warning, as where an API server has them
		f.object, f.text = o.key.String(), f.text+", ignored"
		o.faults = append(o.faults, f)
	}
	sortFaults(o.faults)
	return o
}

// rejectedNode returns a rejected object with its name, and of an EndpointSlice its Service, as far as they can
// be read.
func rejectedNode(n *yaml.Node, c class, faults []fault) *object {
	o := rejected(identify(n, c), faults...)
	label := strictyaml.String(strictyaml.Get(strictyaml.Get(n, "metadata"), "labels"), discoveryv1.LabelServiceName)
	if c == slice && label != "" && o.key != (key{}) {
		for i := range o.faults {
			o.faults[i].of = model.ServiceName{Namespace: o.key.namespace, Name: label}
		}
	}
	return o
}

func asFaults(all []strictyaml.Fault) []fault {
	faults := make([]fault, len(all))
	for i, f := range all {
		faults[i] = fault{line: f.Line, text: f.Text, first: f.First}
	}
	return faults
}

// newTyped returns a new object of the Kubernetes type of a class.
func newTyped(c class) metav1.Object {
	switch c {
	case service:
		return &corev1.Service{}
	case slice:
		return &discoveryv1.EndpointSlice{}
	case serviceCIDR:
		return &networkingv1.ServiceCIDR{}
	case tcpRoute:
		return &gateway.TCPRoute{}
	case udpRoute:
		return &gateway.UDPRoute{}
	case referenceGrant:
		return &gateway.ReferenceGrant{}
	default:
		return &corev1.Node{}
	}
}

var template = regexp.MustCompile(`\{\{-? *[.$a-z"(/][^\n{}]*\}\}`)

// unrendered returns the fault of an unrendered Helm template, which causes all
// others.
func unrendered(text []byte) *fault {
	at := template.FindIndex(text)
	return &fault{line: strictyaml.LineAt(text, at[0]), text: printable.Quoted(string(text[at[0]:at[1]])) +
		" is a Helm template: render it first, with `helm template`"}
}

// lineOf returns the text of a line, from 0.
func lineOf(text []byte, line int) []byte {
	pos := 0
	for range line {
		pos = strictyaml.NextLine(text, pos)
	}
	return text[pos:strictyaml.NextLine(text, pos)]
}

// convert turns a decoded object into the model's. Its faults start with the
// path of the field they are about and have no line yet.
func convert(c class, typed metav1.Object, l *limits) *object {
	switch {
	case c.clusterScoped():
		typed.SetNamespace("")
	case typed.GetNamespace() == "":
		typed.SetNamespace(metav1.NamespaceDefault)
	}
	k := key{c, typed.GetNamespace(), typed.GetName()}
	if why := badName(k); why != "" {
		path, _, _ := strings.Cut(why, ":")
		return rejected(key{}, fault{path: path, text: why})
	}
	o := object{key: k}
	t, isService := typed.(*corev1.Service)
	if isService && l.applied {
		o.open = leave(t)
	}
	v, problems := watch.Convert(typed)
	if isService {
		if v, ok := v.(*model.Service); ok {
			if o.open.clusterIPs {
				v.ClusterIPs = unspecified(v.ClusterIPs)
			}
			o.confine(v, t, l.nodePorts)
		}
		if !l.applied {
			o.advise(t)
		}
	}
	for _, p := range problems {
		o.faults = append(o.faults, fault{
			object: p.Object, of: p.Of, path: watch.FieldPath(p), text: p.Detail + ": " + p.Why.Text(), why: p.Why,
		})
	}
	return o.with(v)
}

// confine removes node ports, including those for health checks, outside the range
// that an API server would allow: other programs on this machine may use them.
func (o *object) confine(v *model.Service, s *corev1.Service, allowed config.PortRange) {
	if n := v.HealthCheckNodePort; n != 0 && !allowed.Has(n) {
		o.outside("spec.healthCheckNodePort", n, allowed)
		v.HealthCheckNodePort = 0
	}
	for i := range v.Ports {
		p := &v.Ports[i]
		if p.NodePort == 0 || allowed.Has(p.NodePort) {
			continue
		}
		at := slices.IndexFunc(s.Spec.Ports, func(q corev1.ServicePort) bool { return q.NodePort == int32(p.NodePort) })
		o.outside("spec.ports["+strconv.Itoa(at)+"].nodePort", p.NodePort, allowed)
		p.NodePort = 0
	}
}

func (o *object) outside(path string, port uint16, allowed config.PortRange) {
	o.faults = append(o.faults, fault{
		object: o.key.String(), path: path, why: model.WhyInvalid,
		text: fmt.Sprintf("%s: %d is outside %s (--service-node-port-range), left out", path, port, allowed),
	})
}

// leave finds what a Service leaves to the API server. Its cluster IPs are some of the families that it asks for then,
// so that it can be converted.
func leave(s *corev1.Service) (left open) {
	if _, other := s.Labels[watch.LabelProxyName]; other || s.Spec.Type == corev1.ServiceTypeExternalName {
		return left
	}
	if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 {
		left.clusterIPs = true
		families := s.Spec.IPFamilies
		if len(families) == 0 {
			families = []corev1.IPFamily{corev1.IPv4Protocol}
		}
		if p := s.Spec.IPFamilyPolicy; len(families) == 1 && p != nil && *p != corev1.IPFamilyPolicySingleStack {
			families = append(slices.Clone(families), map[bool]corev1.IPFamily{true: corev1.IPv6Protocol, false: corev1.IPv4Protocol}[families[0] == corev1.IPv4Protocol])
		}
		for _, f := range families {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, map[bool]string{true: "2001:db8::1", false: "192.0.2.1"}[f == corev1.IPv6Protocol])
		}
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	asks := s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		(s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts)
	left.nodePorts = watch.Served(s) && asks && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == 0 })
	left.healthPort = watch.Served(s) && s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && s.Spec.HealthCheckNodePort == 0
	return left
}

// unspecified is an address that stands for any, for each of some.
func unspecified(addrs []netip.Addr) []netip.Addr {
	any := make([]netip.Addr, len(addrs))
	for i, a := range addrs {
		any[i] = netip.IPv4Unspecified()
		if a.Is6() {
			any[i] = netip.IPv6Unspecified()
		}
	}
	return any
}

// advise adds warnings for fields that an API server would have set.
func (o *object) advise(s *corev1.Service) {
	_, other := s.Labels[watch.LabelProxyName]
	switch {
	case watch.Served(s) && s.Spec.Type == corev1.ServiceTypeNodePort:
		for i := range s.Spec.Ports {
			if s.Spec.Ports[i].NodePort == 0 {
				o.missing("spec.ports[" + strconv.Itoa(i) + "].nodePort")
			}
		}
	case s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 && s.Spec.Type != corev1.ServiceTypeExternalName && !other:
		o.missing("spec.clusterIP")
	}
}

func (o *object) missing(path string) {
	o.faults = append(o.faults, fault{
		object: o.key.String(), path: path, text: path + ": missing: there is no API server here that would assign one",
	})
}

// findLines sets the line of each fault: that of its field, or of the nearest
// existing parent.
func (o *object) findLines(root *yaml.Node) {
	for i := range o.faults {
		o.faults[i].line = strictyaml.Line(root, o.faults[i].path)
	}
	sortFaults(o.faults)
}

// identify returns the name of the object in a rejected document, as far as it can be
// read.
func identify(n *yaml.Node, c class) key {
	meta := strictyaml.Get(n, "metadata")
	k := key{c, strictyaml.String(meta, "namespace"), strictyaml.String(meta, "name")}
	switch {
	case c.clusterScoped():
		k.namespace = ""
	case k.namespace == "":
		k.namespace = metav1.NamespaceDefault
	}
	if badName(k) != "" {
		return key{}
	}
	return k
}

// badName returns what is wrong with an object's name or namespace. Names end up in
// the comments of rules and on terminals, and no API server has validated those in a
// file.
func badName(k key) string {
	const label = "must be lower-case letters, digits and '-', at most 63 (RFC 1123 label)"
	const subdomain = "must be lower-case letters, digits, '-' and '.', at most 253 (RFC 1123 subdomain)"
	switch {
	case k.name == "":
		return "metadata.name: missing"
	case k.class == service && len(validation.IsDNS1123Label(k.name)) > 0:
		return "metadata.name: " + printable.Quoted(k.name) + " " + label
	case k.class != service && len(validation.IsDNS1123Subdomain(k.name)) > 0:
		return "metadata.name: " + printable.Quoted(k.name) + " " + subdomain
	case !k.class.clusterScoped() && len(validation.IsDNS1123Label(k.namespace)) > 0:
		return "metadata.namespace: " + printable.Quoted(k.namespace) + " " + label
	}
	return ""
}
