package manifests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	strictjson "sigs.k8s.io/json"
)

// decoder decodes documents. It keeps nothing of their text.
type decoder struct{ limits limits }

// decode returns the objects of a document: one, or several if it is a list
// that could not be cut into its items. It always returns at least one.
func (d decoder) decode(doc document) []*object {
	if len(doc.text) > d.limits.docBytes {
		return []*object{refused(key{}, fault{
			text: fmt.Sprintf("larger than %d bytes", d.limits.docBytes),
		})}
	}
	if o := d.decodeJSON(doc); o != nil {
		return []*object{o}
	}
	root, bad := parse(doc)
	if bad != nil {
		if template.Match(doc.text) {
			bad = unrendered(doc.text)
		}
		return []*object{refused(key{}, *bad)}
	}
	if doc.item && root.Kind == yaml.SequenceNode && len(root.Content) == 1 {
		root = root.Content[0] // it was cut out together with its dash
	}
	objects := d.decodeNode(root, doc.kind, 0)
	for _, o := range objects {
		if o.bad && slices.ContainsFunc(o.faults, func(f fault) bool { return template.Match(lineOf(doc.text, f.line)) }) {
			*o = *refused(key{}, *unrendered(doc.text))
		}
	}
	clamp(objects, lineAt(doc.text, len(doc.text)))
	return objects
}

// clamp keeps lines within a document: YAML counts some line breaks that
// nobody else does (U+0085, U+2028, U+2029).
func clamp(objects []*object, last int) {
	for _, o := range objects {
		o.start = min(o.start, int32(last))
		for i := range o.faults {
			o.faults[i].line = min(o.faults[i].line, last)
		}
	}
}

// refused returns an object that was refused.
func refused(k key, faults ...fault) *object {
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

// decodeJSON is the short way for documents that are JSON and have nothing
// wrong with them. It returns nil for all others.
func (d decoder) decodeJSON(doc document) *object {
	text := bytes.TrimSpace(doc.text)
	if len(text) == 0 || text[0] != '{' {
		return nil
	}
	var head metav1.TypeMeta
	if json.Unmarshal(text, &head) != nil {
		return nil
	}
	if head.Kind == "" && doc.kind != "" {
		head.Kind, head.APIVersion = doc.kind, apiVersionOf(doc.kind)
	}
	c, _, _ := classify(head.APIVersion, head.Kind)
	switch c {
	case foreign:
		return &object{foreign: head.Kind}
	case service, slice, node, serviceCIDR:
	default:
		return nil
	}
	into := newTyped(c)
	if strict, err := strictjson.UnmarshalStrict(text, into); err != nil || len(strict) > 0 {
		return nil
	}
	o := convert(c, into, d.limits.nodePorts)
	if len(o.faults) > 0 {
		return nil // the long way finds the lines
	}
	o.start = int32(lineAt(doc.text, bytes.IndexByte(doc.text, '{')))
	return o
}

// decodeNode decodes a parsed document, or an item of a list in it.
func (d decoder) decodeNode(n *yaml.Node, kind string, depth int) []*object {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return []*object{refused(key{}, fault{line: n.Line - 1, text: describe(n) + ", must be an object with apiVersion and kind"})}
	}
	apiVersion, own := text(n, "apiVersion"), text(n, "kind")
	if own == "" && apiVersion == "" && kind != "" {
		apiVersion, own = apiVersionOf(kind), kind
	}
	c, field, why := classify(apiVersion, own)
	switch c {
	case foreign:
		return []*object{{foreign: own}}
	case mistaken:
		return []*object{refused(key{}, mistake(n, field, why))}
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
	if v := get(n, field); v != nil && text(n, field) == "" {
		why = describe(v) + ", must be a string"
	}
	return fault{line: lineOfField(n, field), text: field + ": " + why}
}

// decodeList decodes the items of a list that was not cut. A list within a list
// is one mistake too many.
func (d decoder) decodeList(n *yaml.Node, kind string, depth int) []*object {
	item, _ := itemKind(kind)
	items := get(n, "items")
	switch {
	case depth > 0:
		return []*object{refused(key{}, fault{line: n.Line - 1, text: "a List within a List is not read"})}
	case items == nil || items.ShortTag() == "!!null":
		return []*object{{foreign: kind}}
	case items.Kind != yaml.SequenceNode:
		return []*object{refused(key{}, fault{line: items.Line - 1, text: "items: " + describe(items) + ", must be a list"})}
	}
	objects := []*object{{foreign: kind}}
	for _, i := range items.Content {
		objects = append(objects, d.decodeNode(i, item, depth+1)...)
	}
	return objects
}

// decodeObject decodes one of our kinds.
func (d decoder) decodeObject(n *yaml.Node, c class) *object {
	e := encoder{limits: d.limits}
	e.node(n, 0)
	if e.halted {
		return refused(key{}, e.faults...)
	}
	into := newTyped(c)
	strict, err := strictjson.UnmarshalStrict(e.out, into)
	if len(e.faults) == 0 && err == nil && len(strict) == 0 {
		o := convert(c, into, d.limits.nodePorts)
		o.findLines(n)
		return o
	}
	check := checker{limits: d.limits}
	check.value(n, reflect.TypeOf(into).Elem(), "")
	faults := append(e.faults, check.faults...)
	if len(faults) == 0 { // the decoder knows something that the checker does not
		faults = []fault{{line: n.Line - 1, text: fmt.Sprint(err, strict)}}
	}
	sortFaults(faults)
	return refused(identify(n, c), faults...)
}

// newTyped returns a new object of Kubernetes' type for a class.
func newTyped(c class) metav1.Object {
	switch c {
	case service:
		return &corev1.Service{}
	case slice:
		return &discoveryv1.EndpointSlice{}
	case serviceCIDR:
		return &networkingv1.ServiceCIDR{}
	default:
		return &corev1.Node{}
	}
}
