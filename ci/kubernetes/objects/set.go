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

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// Set holds objects by namespace/name, or by name where they are in none.
type Set struct {
	Services map[string]*corev1.Service
	Slices   map[string]*discoveryv1.EndpointSlice
	Nodes    map[string]*corev1.Node
	CIDRs    map[string]*networkingv1.ServiceCIDR
	Gateway  map[string]map[string]*unstructured.Unstructured // of the Gateway API, by kind
}

// NewSet returns an empty Set.
func NewSet() Set {
	s := Set{map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}, map[string]*corev1.Node{}, map[string]*networkingv1.ServiceCIDR{}, map[string]map[string]*unstructured.Unstructured{}}
	for _, kind := range gatewayKinds() {
		s.Gateway[kind] = map[string]*unstructured.Unstructured{}
	}
	return s
}

// RejectedError is the error for an object that the API server rejects.
type RejectedError struct {
	Object string // or the file
	Err    error
}

func (r *RejectedError) Error() string { return fmt.Sprintf("%s: %v", r.Object, r.Err) }

func (r *RejectedError) Unwrap() error { return r.Err }

// Read reads the Services, EndpointSlices, Nodes and ServiceCIDRs of a folder
// strictly, and the routes and grants of the Gateway API as they are. It leaves other
// kinds alone. The first of several with one name counts.
func Read(dir string) (Set, error) {
	s := NewSet()
	var names []string
	for _, ext := range []string{"*.yaml", "*.yml", "*.json"} {
		found, err := filepath.Glob(filepath.Join(dir, ext))
		if err != nil {
			return s, err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return s, err
		}
		if err := s.file(decoder, data); err != nil {
			return s, &RejectedError{filepath.Base(name), err}
		}
	}
	return s, nil
}

func (s *Set) file(decoder runtime.Decoder, data []byte) error {
	for r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.document(decoder, doc); err != nil {
			return err
		}
	}
}

// gatewayKinds are those of the Gateway API that proxies read.
func gatewayKinds() []string { return []string{"TCPRoute", "UDPRoute", "ReferenceGrant"} }

func (s *Set) document(decoder runtime.Decoder, doc []byte) error {
	var empty any
	if err := yaml.Unmarshal(doc, &empty); err == nil && empty == nil {
		return nil // nothing but comments
	}
	o, _, err := decoder.Decode(doc, nil, nil)
	switch {
	case runtime.IsNotRegisteredError(err):
		return s.addGateway(doc)
	case err != nil:
		return err
	}
	return s.add(decoder, o)
}

// addGateway adds an object of the Gateway API, in its best version: API servers serve no
// others today, and what has no fields of its own is the same in all.
func (s *Set) addGateway(doc []byte) error {
	var o unstructured.Unstructured
	text, err := yaml.ToJSON(doc)
	if err == nil {
		err = o.UnmarshalJSON(text)
	}
	if all := s.Gateway[o.GetKind()]; err == nil && all != nil && o.GroupVersionKind().Group == gateway.Group {
		o.SetAPIVersion(gateway.RouteVersions()[0].String())
		put(all, &o)
	}
	return err
}

func (s *Set) add(decoder runtime.Decoder, o runtime.Object) error {
	switch o := o.(type) {
	case *corev1.Service:
		put(s.Services, o)
	case *discoveryv1.EndpointSlice:
		put(s.Slices, o)
	case *corev1.Node:
		put(s.Nodes, o)
	case *networkingv1.ServiceCIDR:
		put(s.CIDRs, o)
	case *corev1.ServiceList:
		for i := range o.Items {
			put(s.Services, &o.Items[i])
		}
	case *discoveryv1.EndpointSliceList:
		for i := range o.Items {
			put(s.Slices, &o.Items[i])
		}
	case *corev1.NodeList:
		for i := range o.Items {
			put(s.Nodes, &o.Items[i])
		}
	case *networkingv1.ServiceCIDRList:
		for i := range o.Items {
			put(s.CIDRs, &o.Items[i])
		}
	case *corev1.List:
		for _, item := range o.Items {
			if err := s.document(decoder, item.Raw); err != nil {
				return err
			}
		}
	}
	return nil
}

// put adds an object without the fields that only an API server sets.
func put[T metav1.Object](all map[string]T, o T) {
	o.SetResourceVersion("")
	o.SetUID("")
	o.SetGeneration(0)
	o.SetManagedFields(nil)
	name := o.GetName()
	switch any(o).(type) {
	case *corev1.Node, *networkingv1.ServiceCIDR: // in no namespace
	default:
		if o.GetNamespace() == "" {
			o.SetNamespace(metav1.NamespaceDefault)
		}
		name = o.GetNamespace() + "/" + name
	}
	if _, twice := all[name]; !twice {
		all[name] = o
	}
}
