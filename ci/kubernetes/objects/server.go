// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// Server is an API server whose Services, EndpointSlices, Nodes and ServiceCIDRs,
// but for the one that it makes itself, and objects of the Gateway API are ours. It
// is for one goroutine.
type Server struct {
	client           dynamic.Interface
	gateway          bool // it has the definitions of the Gateway API
	now              Set
	namespaces       map[string]bool
	services, routes ages
}

// NewServer returns a server without objects of ours, which has the definitions of the Gateway
// API or not.
func NewServer(client dynamic.Interface, gateway bool) *Server {
	return &Server{client: client, gateway: gateway, now: Set{}, namespaces: map[string]bool{metav1.NamespaceDefault: true}}
}

// Apply makes the server hold a set, and deletes what was applied before and is not
// in it. After an error it holds a part of the set.
func (s *Server) Apply(ctx context.Context, want Set) error {
	if len(want["Service"]) == 0 {
		s.services, s.routes = ages{}, ages{}
	}
	var steps []step
	for _, k := range kinds() {
		if k.Group == gateway.Group && !s.gateway && len(want[k.Kind]) > 0 {
			return &RejectedError{k.Kind, errors.New("the API server does not have it: its definition is not installed")}
		}
		steps = append(steps, s.changes(ctx, k, want[k.Kind])...)
	}
	slices.SortStableFunc(steps, func(a, b step) int {
		return cmp.Or(cmp.Compare(a.order, b.order), a.age.Compare(b.age))
	})
	return s.run(ctx, steps)
}

// step is one change. Deletions go first, since they free addresses.
type step struct {
	order     int
	age       time.Time
	namespace string
	do        func() error
}

// changes returns the steps from the objects of a kind that are there to others.
func (s *Server) changes(ctx context.Context, k kind, want map[string]*unstructured.Unstructured) (steps []step) {
	if s.now[k.Kind] == nil {
		s.now[k.Kind] = map[string]*unstructured.Unstructured{}
	}
	now := s.now[k.Kind]
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, stays := want[name]; !stays {
			old := now[name]
			steps = append(steps, step{order: 0, do: func() error {
				delete(now, name)
				return s.remove(ctx, k, old)
			}})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		o := want[name]
		old, there := now[name]
		if there && reflect.DeepEqual(old, o) {
			continue
		}
		steps = append(steps, step{1, o.GetCreationTimestamp().Time, o.GetNamespace(), func() error {
			if err := s.put(ctx, k, o, there); err != nil {
				return err
			}
			now[name] = o
			return nil
		}})
	}
	return steps
}

// run applies steps one after the other. A rejected one is retried after the others:
// it may need an address that another object has until then.
func (s *Server) run(ctx context.Context, steps []step) error {
	for len(steps) > 0 {
		var again []step
		var rejection error
		for _, step := range steps {
			if err := s.namespace(ctx, step.namespace); err != nil {
				return err
			}
			err := step.do()
			var rejected *RejectedError
			switch {
			case errors.As(err, &rejected):
				again, rejection = append(again, step), err
			case err != nil:
				return err
			}
		}
		if len(again) == len(steps) {
			return rejection
		}
		steps = again
	}
	return nil
}

// namespace creates a namespace. It is never deleted: no controller would finalize
// it.
func (s *Server) namespace(ctx context.Context, name string) error {
	if name == "" || s.namespaces[name] {
		return nil
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	o.SetName(name)
	_, err := s.client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Create(ctx, o, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	s.namespaces[name] = true
	return nil
}

// at is where the server has an object.
func (s *Server) at(k kind, o *unstructured.Unstructured) dynamic.ResourceInterface {
	if k.clusterScoped() {
		return s.client.Resource(k.resource())
	}
	return s.client.Resource(k.resource()).Namespace(o.GetNamespace())
}

// put creates or updates an object, or re-creates it if a changed field is immutable.
func (s *Server) put(ctx context.Context, k kind, o *unstructured.Unstructured, there bool) error {
	write := s.create
	if there {
		write = s.update
	}
	got, err := write(ctx, k, o)
	if err == nil {
		err = s.status(ctx, k, o, got)
	}
	return rejection(o, err)
}

func (s *Server) update(ctx context.Context, k kind, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	got, err := s.replace(ctx, k, o)
	switch {
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		if err := s.remove(ctx, k, o); err != nil {
			return got, err
		}
		return s.create(ctx, k, o)
	case apierrors.IsNotFound(err): // it was deleted to be re-created, which was rejected
		return s.create(ctx, k, o)
	}
	return got, err
}

// replace updates an object whatever its version is.
func (s *Server) replace(ctx context.Context, k kind, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	now, err := s.at(k, o).Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	next := o.DeepCopy()
	next.SetResourceVersion(now.GetResourceVersion())
	return s.at(k, o).Update(ctx, next, metav1.UpdateOptions{})
}

func (s *Server) create(ctx context.Context, k kind, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := s.inOrder(ctx, k, o); err != nil {
		return nil, err
	}
	got, err := s.at(k, o).Create(ctx, o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.IsInvalid(err) {
		// The server creates one itself: default/kubernetes.
		if again, missing := s.replace(ctx, k, o); !apierrors.IsNotFound(missing) {
			return again, missing
		}
	}
	return got, err
}

// remove deletes an object that may be gone already.
func (s *Server) remove(ctx context.Context, k kind, o *unstructured.Unstructured) error {
	now := int64(0)
	err := s.at(k, o).Delete(ctx, o.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &now})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return rejection(o, err)
}

// status writes the field of an object that is not written with the rest, if it differs from
// the one that the server has.
func (s *Server) status(ctx context.Context, k kind, o, got *unstructured.Unstructured) error {
	var field []string
	of, _, _ := unstructured.NestedString(o.Object, "spec", "type")
	switch {
	case k.Kind == "Service" && of == string(corev1.ServiceTypeLoadBalancer):
		field = []string{"status", "loadBalancer", "ingress"}
	case k.Kind == "Node":
		field = []string{"status", "addresses"}
	default:
		return nil
	}
	want, there, err := unstructured.NestedFieldCopy(o.Object, field...)
	has, _, _ := unstructured.NestedFieldNoCopy(got.Object, field...)
	if err != nil || reflect.DeepEqual(want, has) {
		return err
	}
	if unstructured.RemoveNestedField(got.Object, field...); there {
		err = unstructured.SetNestedField(got.Object, want, field...)
	}
	if err == nil {
		_, err = s.at(k, o).UpdateStatus(ctx, got, metav1.UpdateOptions{})
	}
	return err
}

// rejection turns an error that means rejection into a *RejectedError.
func rejection(o *unstructured.Unstructured, err error) error {
	if err == nil || errors.As(err, new(*RejectedError)) {
		return err
	}
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsInternalError(err) {
		return &RejectedError{nameOf(o), err}
	}
	return fmt.Errorf("%s: %w", nameOf(o), err)
}

func nameOf(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// ages are those of the objects of a kind, of which the oldest ones count.
type ages struct {
	youngest time.Time // the creation time, in its manifest, of the object that was made last
	made     time.Time // when that was
}

// inOrder waits until an object that is younger by its manifest gets a later creation
// time, which has a resolution of seconds. Those of Services and of routes count.
func (s *Server) inOrder(ctx context.Context, k kind, o *unstructured.Unstructured) error {
	var a *ages
	switch k.Kind {
	case "Service":
		a = &s.services
	case "TCPRoute", "UDPRoute":
		a = &s.routes
	default:
		return nil
	}
	age := o.GetCreationTimestamp().Time
	if age.IsZero() {
		return nil
	}
	if age.Before(a.youngest) {
		return &RejectedError{nameOf(o), errors.New("an API server gives creation times itself, and an older object cannot come later")}
	}
	if !a.youngest.IsZero() && age.After(a.youngest) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(a.made.Add(1100 * time.Millisecond))):
		}
	}
	a.youngest, a.made = age, time.Now()
	return nil
}
