// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// Set holds objects by kind, and those of a kind by namespace/name, or by name where they are
// in no namespace.
type Set map[string]map[string]*unstructured.Unstructured

// kind is a kind of objects that proxies read.
type kind schema.GroupVersionKind

// kinds are all of them, in the order in which they are written.
func kinds() []kind {
	routes := gateway.RouteVersions()[0]
	return []kind{
		kind(corev1.SchemeGroupVersion.WithKind("Service")), kind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")),
		kind(corev1.SchemeGroupVersion.WithKind("Node")), kind(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")),
		kind(routes.WithKind("TCPRoute")), kind(routes.WithKind("UDPRoute")), kind(routes.WithKind("ReferenceGrant")),
	}
}

// clusterScoped reports whether objects of the kind are in no namespace.
func (k kind) clusterScoped() bool { return k.Kind == "Node" || k.Kind == "ServiceCIDR" }

// resource is where an API server has the objects of the kind.
func (k kind) resource() schema.GroupVersionResource {
	return schema.GroupVersion{Group: k.Group, Version: k.Version}.WithResource(strings.ToLower(k.Kind) + "s")
}

// holds reports whether an object is of the kind. Of the Gateway API any version is: API servers serve only the best one
// today, and what has no fields of its own is the same in all.
func (k kind) holds(o *unstructured.Unstructured) bool {
	of := kind(o.GroupVersionKind())
	return k == of || k.Group == gateway.Group && k.Group == of.Group && k.Kind == of.Kind
}

// RejectedError is the error for an object that the API server rejects.
type RejectedError struct {
	Object string // or the file
	Err    error
}

func (r *RejectedError) Error() string { return fmt.Sprintf("%s: %v", r.Object, r.Err) }

func (r *RejectedError) Unwrap() error { return r.Err }

// Read reads the manifests of a folder, as Add does.
func Read(dir string) (Set, error) {
	s := Set{}
	var names []string
	for _, ext := range []string{"*.yaml", "*.yml", "*.json"} {
		found, err := filepath.Glob(filepath.Join(dir, ext))
		if err != nil {
			return s, err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return s, err
		}
		if err := s.Add(data); err != nil {
			return s, &RejectedError{filepath.Base(name), err}
		}
	}
	return s, nil
}

// Add adds the Services, EndpointSlices, Nodes and ServiceCIDRs of a file of manifests,
// which it reads strictly, and the routes and grants of the Gateway API as they are. It leaves
// other kinds alone. The first of several with one name counts.
func (s Set) Add(manifests []byte) error {
	for r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.document(doc); err != nil {
			return err
		}
	}
}

func (s Set) document(doc []byte) error {
	text, err := yaml.ToJSON(doc)
	if err != nil || string(text) == "null" { // nothing but comments
		return err
	}
	if err := check(doc); err != nil {
		return err
	}
	o, _, err := unstructured.UnstructuredJSONScheme.Decode(text, nil, nil)
	switch o := o.(type) {
	case *unstructured.Unstructured:
		s.put(o)
	case *unstructured.UnstructuredList:
		for i := range o.Items {
			item, err := o.Items[i].MarshalJSON()
			if err := errors.Join(err, check(item)); err != nil { // a List of any objects has none of a known kind
				return err
			}
			s.put(&o.Items[i])
		}
	}
	return err
}

// check returns what is wrong with an object of a kind that is built in.
func check(text []byte) error {
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	_, _, err := strict.Decode(text, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return nil
	}
	return err
}

// put adds an object without the fields that only an API server sets.
func (s Set) put(o *unstructured.Unstructured) {
	i := slices.IndexFunc(kinds(), func(k kind) bool { return k.holds(o) })
	if i < 0 {
		return
	}
	k := kinds()[i]
	o.SetGroupVersionKind(schema.GroupVersionKind(k))
	o.SetResourceVersion("")
	o.SetUID("")
	o.SetGeneration(0)
	o.SetManagedFields(nil)
	name := o.GetName()
	if !k.clusterScoped() {
		if o.GetNamespace() == "" {
			o.SetNamespace(metav1.NamespaceDefault)
		}
		name = o.GetNamespace() + "/" + name
	}
	if s[k.Kind] == nil {
		s[k.Kind] = map[string]*unstructured.Unstructured{}
	}
	if _, twice := s[k.Kind][name]; !twice {
		s[k.Kind][name] = o
	}
}
