// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Server is an API server whose Services, EndpointSlices, Nodes and ServiceCIDRs,
// but for the one that it makes itself, and objects of the Gateway API are ours. It
// is for one goroutine.
type Server struct {
	client           kubernetes.Interface
	gateway          dynamic.Interface // nil where the server does not have the Gateway API
	now              Set
	namespaces       map[string]bool
	services, routes ages
}

// NewServer returns a server without objects of ours. Gateway is a client for the objects
// of the Gateway API; it is nil where the server does not have their definitions.
func NewServer(client kubernetes.Interface, gateway dynamic.Interface) *Server {
	return &Server{client: client, gateway: gateway, now: NewSet(), namespaces: map[string]bool{metav1.NamespaceDefault: true}}
}

// Apply makes the server hold a set, and deletes what was applied before and is not
// in it. After an error it holds a part of the set.
func (s *Server) Apply(ctx context.Context, want Set) error {
	if len(want.Services) == 0 {
		s.services, s.routes = ages{}, ages{}
	}
	steps := slices.Concat(
		changes(ctx, s.serviceKind(), s.now.Services, want.Services),
		changes(ctx, s.slices(), s.now.Slices, want.Slices),
		changes(ctx, s.nodes(), s.now.Nodes, want.Nodes),
		changes(ctx, s.cidrs(), s.now.CIDRs, want.CIDRs),
	)
	for _, name := range gatewayKinds() {
		if s.gateway == nil && len(want.Gateway[name]) > 0 {
			return &RejectedError{name, errors.New("the API server does not have it: its definition is not installed")}
		}
		steps = append(steps, changes(ctx, s.gatewayKind(name), s.now.Gateway[name], want.Gateway[name])...)
	}
	slices.SortStableFunc(steps, func(a, b step) int {
		return cmp.Or(cmp.Compare(a.order, b.order), a.age.Compare(b.age))
	})
	return s.run(ctx, steps)
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
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := s.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	s.namespaces[name] = true
	return nil
}

// step is one change. Deletions go first, since they free addresses.
type step struct {
	order     int
	age       time.Time
	namespace string
	do        func() error
}

// changes returns the steps from one map of objects to another.
func changes[T object[T]](ctx context.Context, k kind[T], now, want map[string]T) (steps []step) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, stays := want[name]; !stays {
			old := now[name]
			steps = append(steps, step{order: 0, do: func() error {
				delete(now, name)
				return k.remove(ctx, old)
			}})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		o := want[name]
		old, there := now[name]
		if there && same(old, o) {
			continue
		}
		steps = append(steps, step{1, o.GetCreationTimestamp().Time, o.GetNamespace(), func() error {
			if err := k.put(ctx, o, there); err != nil {
				return err
			}
			now[name] = o
			return nil
		}})
	}
	return steps
}
