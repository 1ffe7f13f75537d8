// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// key names an object. The zero key names none.
type key struct {
	class           class
	namespace, name string
}

// String returns "Service default/web" or "Node node-1".
func (k key) String() string {
	if k.class.clusterScoped() {
		return k.class.String() + " " + k.name
	}
	return k.class.String() + " " + k.namespace + "/" + k.name
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.class, o.class), cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

// object is the result of one manifest. It is shared between reads of the folder as
// long as the text of its document stays the same, so that most comparisons are by
// pointer.
type object struct {
	key    key   // zero if the name cannot be read; for a kind that is not read, its class and that kind
	bad    bool  // rejected; the last good version is kept
	open   open  // of a Service, where manifests are as people apply them
	start  int32 // the line of the object within its document, from 0
	faults []fault

	// value is nil for an object that is bad, or fine but useless, such as a headless Service.
	value model.Object
}

// open is what a Service leaves to the API server, as in model.Unassigned.
type open struct{ clusterIPs, nodePorts, healthPort bool }

// ofKind returns the object of a kind that we do not read.
func ofKind(kind string) *object { return &object{key: key{class: foreign, name: kind}} }

// with returns the object with a copy of a value. Both are one allocation, of a
// size that decoding does not use: a small value of its own would keep the whole page
// of garbage in which it was made.
func (o object) with(v model.Object) *object {
	switch v := v.(type) {
	case *model.Service:
		return together(o, v)
	case *model.Slice:
		return together(o, v)
	case *model.Node:
		return together(o, v)
	case *model.ServiceCIDR:
		return together(o, v)
	case *model.Route:
		return together(o, v)
	case *model.Grant:
		return together(o, v)
	}
	return &o
}

func together[T any, P interface {
	*T
	model.Object
}](o object, v P,
) *object {
	both := &struct {
		object
		value T
	}{o, *v}
	both.object.value = P(&both.value)
	return &both.object
}

// service is the Service of an EndpointSlice; the zero value for other objects.
func (o *object) service() (n model.ServiceName) {
	if s, ok := o.value.(*model.Slice); ok {
		n = s.Owner()
	}
	return n
}

// usable reports whether the object is passed to the sink.
func (o *object) usable() bool { return o.value != nil }

// placed is an object with its present position in the folder.
type placed struct {
	*object
	file string
	line int // of the document
}

func (p placed) whereNow() string { return where(p.file, p.line+int(p.start)) }

// moved returns the object with its present place in Where. Model values are
// immutable, so one that has moved is copied.
func (p placed) moved() *object {
	w := p.whereNow()
	if !p.usable() || w == *p.where() {
		return p.object
	}
	o := p.object.with(p.value)
	*o.where() = w
	return o
}

// where is the field with the file and line of a usable object. It is set before the
// object is passed on.
func (o *object) where() *string {
	switch v := o.value.(type) {
	case *model.Service:
		return &v.Where
	case *model.Slice:
		return &v.Where
	case *model.Node:
		return &v.Where
	case *model.ServiceCIDR:
		return &v.Where
	case *model.Route:
		return &v.Where
	case *model.Grant:
		return &v.Where
	}
	return nil
}

// same reports whether two objects of one key are equal apart from their positions.
func (o *object) same(p *object) bool {
	return o == p || o.usable() == p.usable() && (!o.usable() || model.Same(o.value, p.value))
}

// class is the class of a document.
type class uint8

const (
	foreign class = iota // a kind that Tandem does not read: skipped
	service
	slice
	node
	serviceCIDR
	tcpRoute
	udpRoute
	referenceGrant
	list
	mistaken // one of the kinds that we read, but invalid
)

// String returns the kind of object.
func (c class) String() string {
	return [...]string{"object", "Service", "EndpointSlice", "Node", "ServiceCIDR", "TCPRoute", "UDPRoute", "ReferenceGrant", "List", "document"}[c]
}

// clusterScoped reports whether objects of the kind are in no namespace.
func (c class) clusterScoped() bool { return c == node || c == serviceCIDR }

// typed reports whether objects of the kind are decoded.
func (c class) typed() bool { return service <= c && c <= referenceGrant }

var kinds = [...]struct {
	kind, apiVersion string
	class            class
}{
	{"Service", "v1", service},
	{"EndpointSlice", "discovery.k8s.io/v1", slice},
	{"Node", "v1", node},
	{"ServiceCIDR", "networking.k8s.io/v1", serviceCIDR},
	{"TCPRoute", "gateway.networking.k8s.io/v1", tcpRoute},
	{"TCPRoute", "gateway.networking.k8s.io/v1alpha2", tcpRoute},
	{"UDPRoute", "gateway.networking.k8s.io/v1", udpRoute},
	{"UDPRoute", "gateway.networking.k8s.io/v1alpha2", udpRoute},
	{"ReferenceGrant", "gateway.networking.k8s.io/v1", referenceGrant},
	{"ReferenceGrant", "gateway.networking.k8s.io/v1beta1", referenceGrant},
	{"List", "v1", list},
	{"ServiceList", "v1", list},
	{"EndpointSliceList", "discovery.k8s.io/v1", list},
	{"NodeList", "v1", list},
	{"ServiceCIDRList", "networking.k8s.io/v1", list},
	{"TCPRouteList", "gateway.networking.k8s.io/v1", list},
	{"UDPRouteList", "gateway.networking.k8s.io/v1", list},
	{"ReferenceGrantList", "gateway.networking.k8s.io/v1", list},
}

// apiVersionOf returns the version in which we read a kind, for items of typed
// lists, which need not repeat it.
func apiVersionOf(kind string) string {
	for _, k := range kinds {
		if k.kind == kind {
			return k.apiVersion
		}
	}
	return ""
}

// classify returns the class of a document. For mistaken ones why has the field and
// what is wrong with it.
func classify(apiVersion, kind string) (c class, field, why string) {
	switch {
	case kind == "" && apiVersion == "":
		return mistaken, "", "no Kubernetes object: it has neither apiVersion nor kind"
	case kind == "":
		return mistaken, "kind", "missing"
	case apiVersion == "":
		return mistaken, "apiVersion", "missing"
	}
	for _, k := range kinds {
		if k.kind == kind && k.apiVersion == apiVersion {
			return k.class, "", ""
		}
	}
	for _, k := range kinds {
		switch {
		case k.kind == kind && ofKubernetes(apiVersion):
			return mistaken, "apiVersion", printable.Quoted(apiVersion) + " is not read for kind " + kind + ": use " + k.apiVersion
		case looksLike(kind, k.kind) && ofKubernetes(apiVersion):
			return mistaken, "kind", printable.Quoted(kind) + " is unknown: did you mean " + k.kind + "?"
		}
	}
	if kind == "Endpoints" && apiVersion == "v1" {
		return mistaken, "kind", "Endpoints are not read: write an EndpointSlice of discovery.k8s.io/v1"
	}
	return foreign, "", ""
}

// ofKubernetes reports whether an apiVersion is, or looks like, one of
// Kubernetes' own groups. Others have kinds of the same name, such as
// serving.knative.dev/v1 Service.
func ofKubernetes(apiVersion string) bool {
	group, _, grouped := strings.Cut(apiVersion, "/")
	return !grouped || !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// looksLike reports whether two kinds differ only in case or a plural ending.
func looksLike(kind, known string) bool {
	return kind != known && strings.EqualFold(strings.TrimSuffix(kind, "s"), known)
}
