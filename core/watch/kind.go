// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// name names an object of any kind.
type name struct{ Namespace, Name string }

// kind is what differs between the kinds of objects that are followed.
type kind struct {
	resource     string // endpointslices
	version      schema.GroupVersion
	label, field string // selectors
	newer        string // a field selector that servers before Kubernetes 1.31 refuse
	optional     bool   // forwarding does not depend on it: it may be missing or forbidden
	others       bool   // all Nodes but this machine's, which is a kind of its own
	// fallbacks are versions to try where there is no version: of custom resources, which may
	// come and go.
	fallbacks []schema.GroupVersion
	object    runtime.Object          // an empty one
	named     func(name) model.Object // of the kind, with nothing but a name
	// moot objects have no effect on a Service where nothing of them can be used. The effect of an unusable object
	// of another kind is unknown, and objects of the data plane that it may have caused are kept.
	moot bool
}

// groupResource returns the name that people know a kind by, such as
// "endpointslices.discovery.k8s.io".
func (k *kind) groupResource() string {
	return schema.GroupResource{Group: k.version.Group, Resource: k.resource}.String()
}

const otherNodesKey = "other nodes"

// key names the kind among those that are followed.
func (k *kind) key() string {
	if k.others {
		return otherNodesKey
	}
	return k.resource
}

// typeName is the name of the type of its objects, as the API has it.
func (k *kind) typeName() string { return reflect.TypeOf(k.object).Elem().Name() }

// keyOf names an object of the kind among all.
func (k *kind) keyOf(n name) model.Key {
	return model.Key{Kind: k.typeName(), Namespace: n.Namespace, Name: n.Name}
}

// empty returns a new object without anything.
func (k *kind) empty() runtime.Object {
	return reflect.New(reflect.TypeOf(k.object).Elem()).Interface().(runtime.Object)
}

// read returns what an object means, as Convert. Any of another type that a server might send is refused.
func (k *kind) read(o runtime.Object) (model.Object, []model.Problem) {
	if reflect.TypeOf(o) != reflect.TypeOf(k.object) {
		return nil, []model.Problem{{Object: "API server", Why: model.WhyInvalid, Detail: fmt.Sprintf("sent a %T", o)}}
	}
	meaning, problems := Convert(o)
	if k.others {
		problems = nil
	}
	return meaning, problems
}

// services are those with a virtual IP that no other proxy was asked to serve.
// kube-proxy reads ExternalName Services, too.
func services() kind {
	return kind{
		resource: "services", version: corev1.SchemeGroupVersion,
		label:  "!" + LabelProxyName,
		newer:  "spec.clusterIP!=" + corev1.ClusterIPNone + ",spec.type!=" + string(corev1.ServiceTypeExternalName),
		object: &corev1.Service{},
		named:  func(n name) model.Object { return &model.Service{Name: model.ServiceName(n)} },
	}
}

// endpointSlices are those of Services with a virtual IP, as in kube-proxy.
func endpointSlices() kind {
	return kind{
		resource: "endpointslices", version: discoveryv1.SchemeGroupVersion,
		label:  "!" + corev1.IsHeadlessService,
		object: &discoveryv1.EndpointSlice{},
		named:  func(n name) model.Object { return &model.Slice{Name: model.SliceName(n)} },
	}
}

// ownNode is this machine's Node. If it is deleted its last state is kept, but load
// balancer health checks fail.
func ownNode(nodeName string) kind {
	return kind{
		resource: "nodes", version: corev1.SchemeGroupVersion,
		field:  "metadata.name=" + nodeName,
		object: &corev1.Node{},
	}
}

// otherNodes are all Nodes but this machine's, whose addresses external IPs are not to take. What is wrong with
// them is reported by the proxies that run there.
func otherNodes(nodeName string) kind {
	return kind{
		resource: "nodes", version: corev1.SchemeGroupVersion, optional: true, others: true,
		field:  "metadata.name!=" + nodeName,
		object: &corev1.Node{},
		named:  func(n name) model.Object { return &model.Node{Name: n.Name} },
	}
}

// serviceCIDRs are the ranges that cluster IPs are taken from (KEP-1880). They
// may be missing, before Kubernetes 1.33: then there are none. Without the permission they
// are unknown.
func serviceCIDRs() kind {
	return kind{
		resource: "servicecidrs", version: networkingv1.SchemeGroupVersion, optional: true,
		object: &networkingv1.ServiceCIDR{},
		named:  func(n name) model.Object { return &model.ServiceCIDR{Name: n.Name} },
	}
}

// routes are the kinds of the Gateway API that are followed where they are requested.
// They are custom resources: they may be missing, and come and go.
func routes() []kind {
	named := func(p model.Proto) func(name) model.Object {
		return func(n name) model.Object {
			return &model.Route{Name: model.RouteName{Proto: p, Namespace: n.Namespace, Name: n.Name}}
		}
	}
	versions, grants := gateway.RouteVersions(), gateway.GrantVersions()
	return []kind{
		{
			resource: "referencegrants", version: grants[0], fallbacks: grants[1:], optional: true, moot: true, // one grants nothing
			object: &gateway.ReferenceGrant{},
			named:  func(n name) model.Object { return &model.Grant{Name: model.GrantName(n)} },
		},
		{
			resource: "tcproutes", version: versions[0], fallbacks: versions[1:], optional: true, moot: true, // no Service of its namespace is its parent
			object: &gateway.TCPRoute{},
			named:  named(model.TCP),
		},
		{
			resource: "udproutes", version: versions[0], fallbacks: versions[1:], optional: true, moot: true,
			object: &gateway.UDPRoute{},
			named:  named(model.UDP),
		},
	}
}

// A list is decoded one item at a time, each dropped before the next: an item may take three
// bytes of an answer, and a thousand of memory. An item without a name ends the list: objects
// have one, and of those that a few bytes make none does.

// maxItem bounds an item, as maxEvent an event. etcd stores 1.5 MB of an object.
const maxItem = maxEvent

// eachItem passes the items of a list on, and returns the list's own metadata. All of the items
// that were passed on are objects of the server, also where an error follows.
func (k *kind) eachItem(result rest.Result, each func(runtime.Object, metav1.Object) error) (list metav1.ListMeta, err error) {
	if err := result.Error(); err != nil { // Raw's error lacks what the server says in its Status
		return list, err
	}
	body, err := result.Raw()
	if err != nil {
		return list, err
	}
	one := func(decode func(runtime.Object) error) error {
		o := k.empty()
		if err := decode(o); err != nil {
			return err
		}
		m, ok := o.(metav1.Object)
		if !ok || m.GetName() == "" {
			return errors.New("an item has no name")
		}
		return each(o, m)
	}
	want := k.typeName() + "List"
	if payload, ok := bytes.CutPrefix(body, []byte(protobufPrefix)); ok {
		list, err = protobufItems(payload, want, one)
	} else {
		list, err = jsonItems(body, want, one)
	}
	if err != nil {
		err = fmt.Errorf("list of %s: %w", k.resource, err)
	}
	return list, err
}

// protobufPrefix is what a runtime.Unknown, which holds an object or a list, begins with.
const protobufPrefix = "k8s\x00"

// The numbers of fields: of runtime.Unknown, of the TypeMeta in it, and of every list.
const (
	unknownType     = 1
	unknownRaw      = 2
	typeMetaVersion = 1
	typeMetaKind    = 2
	listMeta        = 1
	listItem        = 2
)

// unknown is a runtime.Unknown. It refers to what it was parsed from.
type unknown struct{ version, kind, raw []byte }

func parseUnknown(payload []byte) (u unknown, err error) {
	err = eachField(payload, func(number protowire.Number, value []byte) error {
		switch number {
		case unknownType:
			return eachField(value, func(number protowire.Number, value []byte) error {
				switch number {
				case typeMetaVersion:
					u.version = value
				case typeMetaKind:
					u.kind = value
				}
				return nil
			})
		case unknownRaw:
			u.raw = value
		}
		return nil
	})
	return u, err
}

// protobufItems decodes a list in protobuf.
func protobufItems(payload []byte, want string, one func(func(runtime.Object) error) error) (list metav1.ListMeta, err error) {
	u, err := parseUnknown(payload)
	if err == nil && string(u.kind) != want {
		err = notThe(string(u.kind[:min(len(u.kind), maxText)]), want)
	}
	if err != nil {
		return list, err
	}
	err = eachField(u.raw, func(number protowire.Number, value []byte) error {
		switch number {
		case listMeta:
			return list.Unmarshal(value)
		case listItem:
			if len(value) > maxItem {
				return fmt.Errorf("an item is larger than %d MiB", maxItem>>20)
			}
			return one(func(o runtime.Object) error {
				m, ok := o.(interface{ Unmarshal([]byte) error })
				if !ok {
					return fmt.Errorf("%T has no form in protobuf", o)
				}
				hideUnread(value)
				return m.Unmarshal(value)
			})
		}
		return nil
	})
	return list, err
}

// eachField calls each for the fields of a message that have a length.
func eachField(message []byte, each func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return protowire.ParseError(n)
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := each(number, value); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// jsonItems decodes a list in JSON.
func jsonItems(body []byte, want string, one func(func(runtime.Object) error) error) (list metav1.ListMeta, err error) {
	in := json.NewDecoder(bytes.NewReader(body))
	if t, err := in.Token(); err != nil || t != json.Delim('{') {
		return list, notThe("", want)
	}
	var value json.RawMessage // used again
	for in.More() {
		key, err := in.Token()
		if err != nil {
			return list, err
		}
		if key == "items" {
			err = jsonArray(in, func() error {
				if err := in.Decode(&value); err != nil {
					return err
				}
				if len(value) > maxItem {
					return fmt.Errorf("an item is larger than %d MiB", maxItem>>20)
				}
				return one(func(o runtime.Object) error { return utiljson.Unmarshal(value, o) })
			})
			if err != nil {
				return list, err
			}
			continue
		}
		if err := in.Decode(&value); err != nil {
			return list, err
		}
		switch key {
		case "kind":
			var kind string
			if err := utiljson.Unmarshal(value, &kind); err != nil || kind != want {
				return list, notThe(printable.CutBytes(kind, maxText), want)
			}
		case "metadata":
			if err := utiljson.Unmarshal(value, &list); err != nil {
				return list, err
			}
		}
	}
	_, err = in.Token()
	return list, err
}

// jsonArray calls each where a value of an array begins; null is an empty one.
func jsonArray(in *json.Decoder, each func() error) error {
	t, err := in.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return fmt.Errorf("items begin with %v", t)
	}
	for in.More() {
		if err := each(); err != nil {
			return err
		}
	}
	_, err = in.Token()
	return err
}

func notThe(kind, want string) error { return fmt.Errorf("the answer is a %q, not a %s", kind, want) }
