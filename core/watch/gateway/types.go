// SPDX-License-Identifier: Apache-2.0

// Package gateway has what Tandem reads of the Gateway API: the kinds TCPRoute,
// UDPRoute and ReferenceGrant (sigs.k8s.io/gateway-api, apis/v1), with all the fields
// that users write. The API's own module would bring all its other kinds and its
// validation; a dynamic client would keep every object as nested maps.
package gateway

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the group of the Gateway API.
const Group = "gateway.networking.k8s.io"

// RouteVersions returns the versions that routes are read in, the best first: v1 since
// 1.6 of the Gateway API.
func RouteVersions() []schema.GroupVersion { return versions("v1", "v1alpha2") }

// GrantVersions returns those of ReferenceGrants.
func GrantVersions() []schema.GroupVersion { return versions("v1", "v1beta1") }

func versions(names ...string) (all []schema.GroupVersion) {
	for _, n := range names {
		all = append(all, schema.GroupVersion{Group: Group, Version: n})
	}
	return all
}

// Route is what the kinds of routes have in common.
type Route struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              RouteSpec `json:"spec"`
	Status            Ignored   `json:"status,omitzero"`
}

// TCPRoute is a route for TCP.
type TCPRoute struct {
	Route `json:",inline"`
}

// UDPRoute is a route for UDP.
type UDPRoute struct {
	Route `json:",inline"`
}

// RouteSpec is what a route asks for.
type RouteSpec struct {
	ParentRefs         []ParentRef `json:"parentRefs,omitempty"`
	UseDefaultGateways string      `json:"useDefaultGateways,omitempty"`
	Rules              []RouteRule `json:"rules,omitempty"`
}

// ParentRef is what a route is for. Group and Kind of nil are a Gateway.
type ParentRef struct {
	Group       *string `json:"group,omitempty"`
	Kind        *string `json:"kind,omitempty"`
	Namespace   string  `json:"namespace,omitempty"`
	Name        string  `json:"name"`
	SectionName string  `json:"sectionName,omitempty"`
	Port        *int32  `json:"port,omitempty"`
}

// RouteRule is where connections go.
type RouteRule struct {
	Name        string       `json:"name,omitempty"`
	BackendRefs []BackendRef `json:"backendRefs,omitempty"`
}

// BackendRef is a backend and its weight, 1 for nil.
type BackendRef struct {
	Group     string  `json:"group,omitempty"`
	Kind      *string `json:"kind,omitempty"` // nil is Service
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name"`
	Port      *int32  `json:"port,omitempty"`
	Weight    *int32  `json:"weight,omitempty"`
}

// ReferenceGrant lets objects of other namespaces refer to some of its own.
type ReferenceGrant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              GrantSpec `json:"spec"`
}

// GrantSpec lists permitted referrers and the objects they may refer to.
type GrantSpec struct {
	From []GrantFrom `json:"from"`
	To   []GrantTo   `json:"to"`
}

// GrantFrom is a kind of objects of a namespace.
type GrantFrom struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
}

// GrantTo is a kind of objects, or one of them.
type GrantTo struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name,omitempty"`
}

// Ignored is a field whose value does not matter.
type Ignored struct{}

// UnmarshalJSON accepts anything.
func (*Ignored) UnmarshalJSON([]byte) error { return nil }

// AddToScheme adds the kinds in all their versions. Their lists are read item by item, and have no types.
func AddToScheme(s *runtime.Scheme) error {
	for _, gv := range RouteVersions() {
		s.AddKnownTypes(gv, &TCPRoute{}, &UDPRoute{})
		metav1.AddToGroupVersion(s, gv)
	}
	for _, gv := range GrantVersions() {
		s.AddKnownTypes(gv, &ReferenceGrant{})
		metav1.AddToGroupVersion(s, gv)
	}
	return nil
}

func (r *Route) deepCopy() (c Route) {
	c = *r
	r.DeepCopyInto(&c.ObjectMeta)
	c.Spec.ParentRefs, c.Spec.Rules = slices.Clone(r.Spec.ParentRefs), slices.Clone(r.Spec.Rules)
	for i := range c.Spec.Rules { // what fields point to is never changed
		c.Spec.Rules[i].BackendRefs = slices.Clone(c.Spec.Rules[i].BackendRefs)
	}
	return c
}

var _ runtime.Object = (*TCPRoute)(nil)

func (r *TCPRoute) DeepCopyObject() runtime.Object { return &TCPRoute{r.deepCopy()} }

var _ runtime.Object = (*UDPRoute)(nil)

func (r *UDPRoute) DeepCopyObject() runtime.Object { return &UDPRoute{r.deepCopy()} }

var _ runtime.Object = (*ReferenceGrant)(nil)

func (g *ReferenceGrant) DeepCopyObject() runtime.Object {
	c := *g
	g.DeepCopyInto(&c.ObjectMeta)
	c.Spec = GrantSpec{slices.Clone(g.Spec.From), slices.Clone(g.Spec.To)}
	return &c
}
