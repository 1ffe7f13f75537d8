// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// object is one of the kinds.
type object[T any] interface {
	metav1.Object
	runtime.Object
	DeepCopy() T
}

// client is the part of a typed client that all kinds share.
type client[T any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	Get(context.Context, string, metav1.GetOptions) (T, error)
}

// kind writes objects of a kind.
type kind[T object[T]] struct {
	name   string
	in     func(namespace string) client[T]
	before func(context.Context, T) error              // a creation; may be nil
	status func(ctx context.Context, want, at T) error // what is not written with the rest; may be nil
}

func same[T any](a, b T) bool { return reflect.DeepEqual(a, b) }

// put creates or updates an object, or re-creates it if a changed field is immutable.
func (k kind[T]) put(ctx context.Context, o T, there bool) error {
	got, err := o, error(nil)
	if there {
		got, err = k.update(ctx, o)
	} else {
		got, err = k.create(ctx, o)
	}
	if err == nil && k.status != nil {
		err = k.status(ctx, o, got)
	}
	return k.rejection(o, err)
}

func (k kind[T]) update(ctx context.Context, o T) (T, error) {
	got, err := k.in(o.GetNamespace()).Update(ctx, o.DeepCopy(), metav1.UpdateOptions{})
	switch {
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		if err := k.remove(ctx, o); err != nil {
			return got, err
		}
		return k.create(ctx, o)
	case apierrors.IsNotFound(err): // it was deleted to be re-created, which was rejected
		return k.create(ctx, o)
	}
	return got, err
}

func (k kind[T]) create(ctx context.Context, o T) (got T, err error) {
	if k.before != nil {
		if err := k.before(ctx, o); err != nil {
			return got, err
		}
	}
	got, err = k.in(o.GetNamespace()).Create(ctx, o.DeepCopy(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.IsInvalid(err) {
		// The server creates one itself: default/kubernetes.
		if _, missing := k.in(o.GetNamespace()).Get(ctx, o.GetName(), metav1.GetOptions{}); missing == nil {
			return k.in(o.GetNamespace()).Update(ctx, o.DeepCopy(), metav1.UpdateOptions{})
		}
	}
	return got, err
}

// remove deletes an object that may be gone already.
func (k kind[T]) remove(ctx context.Context, o T) error {
	now := int64(0)
	err := k.in(o.GetNamespace()).Delete(ctx, o.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &now})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return k.rejection(o, err)
}

// rejection turns an error that means rejection into a *RejectedError.
func (k kind[T]) rejection(o T, err error) error {
	if err == nil || errors.As(err, new(*RejectedError)) {
		return err
	}
	name := k.name + " " + o.GetNamespace() + "/" + o.GetName()
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsInternalError(err) {
		return &RejectedError{name, err}
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (s *Server) serviceKind() kind[*corev1.Service] {
	return kind[*corev1.Service]{
		name:   "Service",
		in:     func(ns string) client[*corev1.Service] { return s.client.CoreV1().Services(ns) },
		before: func(ctx context.Context, o *corev1.Service) error { return s.services.inOrder(ctx, "Service", o) },
		status: func(ctx context.Context, want, at *corev1.Service) error {
			if same(want.Status, at.Status) || want.Spec.Type != corev1.ServiceTypeLoadBalancer {
				return nil
			}
			at.Status = want.Status
			_, err := s.client.CoreV1().Services(at.Namespace).UpdateStatus(ctx, at, metav1.UpdateOptions{})
			return err
		},
	}
}

// ages are those of the objects of a kind, of which the oldest ones count.
type ages struct {
	youngest time.Time // the creation time, in its manifest, of the object that was made last
	made     time.Time // when that was
}

// inOrder waits until an object that is younger by its manifest gets a later creation
// time, which has a resolution of seconds.
func (a *ages) inOrder(ctx context.Context, kind string, o metav1.Object) error {
	age := o.GetCreationTimestamp().Time
	if age.IsZero() {
		return nil
	}
	if age.Before(a.youngest) {
		return &RejectedError{kind + " " + o.GetNamespace() + "/" + o.GetName(), errors.New("an API server gives creation times itself, and an older object cannot come later")}
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

// gatewayKind returns a kind of the Gateway API.
func (s *Server) gatewayKind(name string) kind[*unstructured.Unstructured] {
	resource := gateway.RouteVersions()[0].WithResource(strings.ToLower(name) + "s")
	k := kind[*unstructured.Unstructured]{
		name: name,
		in: func(ns string) client[*unstructured.Unstructured] {
			return untyped{s.gateway.Resource(resource).Namespace(ns)}
		},
	}
	if name != "ReferenceGrant" {
		k.before = func(ctx context.Context, o *unstructured.Unstructured) error { return s.routes.inOrder(ctx, name, o) }
	}
	return k
}

// untyped is a dynamic client as a typed one.
type untyped struct{ dynamic.ResourceInterface }

func (u untyped) Create(ctx context.Context, o *unstructured.Unstructured, with metav1.CreateOptions) (*unstructured.Unstructured, error) {
	return u.ResourceInterface.Create(ctx, o, with)
}

// Update replaces an object whatever its version is, as API servers do with
// the built-in kinds: those of definitions are rejected without one.
func (u untyped) Update(ctx context.Context, o *unstructured.Unstructured, with metav1.UpdateOptions) (*unstructured.Unstructured, error) {
	now, err := u.Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	o.SetResourceVersion(now.GetResourceVersion())
	return u.ResourceInterface.Update(ctx, o, with)
}

func (u untyped) Delete(ctx context.Context, name string, with metav1.DeleteOptions) error {
	return u.ResourceInterface.Delete(ctx, name, with)
}

func (u untyped) Get(ctx context.Context, name string, with metav1.GetOptions) (*unstructured.Unstructured, error) {
	return u.ResourceInterface.Get(ctx, name, with)
}

func (s *Server) slices() kind[*discoveryv1.EndpointSlice] {
	return kind[*discoveryv1.EndpointSlice]{
		name: "EndpointSlice",
		in:   func(ns string) client[*discoveryv1.EndpointSlice] { return s.client.DiscoveryV1().EndpointSlices(ns) },
	}
}

func (s *Server) nodes() kind[*corev1.Node] {
	return kind[*corev1.Node]{
		name: "Node",
		in:   func(string) client[*corev1.Node] { return s.client.CoreV1().Nodes() },
		status: func(ctx context.Context, want, at *corev1.Node) error {
			if same(want.Status.Addresses, at.Status.Addresses) {
				return nil
			}
			at.Status.Addresses = want.Status.Addresses
			_, err := s.client.CoreV1().Nodes().UpdateStatus(ctx, at, metav1.UpdateOptions{})
			return err
		},
	}
}

func (s *Server) cidrs() kind[*networkingv1.ServiceCIDR] {
	return kind[*networkingv1.ServiceCIDR]{
		name: "ServiceCIDR",
		in:   func(string) client[*networkingv1.ServiceCIDR] { return s.client.NetworkingV1().ServiceCIDRs() },
	}
}
