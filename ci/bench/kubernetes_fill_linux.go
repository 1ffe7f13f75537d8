// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// fill writes the world to an empty API server.
func fill(ctx context.Context, client kubernetes.Interface, w world) error {
	err := each(ctx, namespaces, func(i int) error {
		_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i)}}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if _, err = client.CoreV1().Nodes().Create(ctx, node(), metav1.CreateOptions{}); err != nil {
		return err
	}
	return each(ctx, w.services, func(i int) error {
		if _, err := client.CoreV1().Services(namespace(i)).Create(ctx, w.service(i), metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := client.DiscoveryV1().EndpointSlices(namespace(i)).Create(ctx, w.slice(i, 0, 0), metav1.CreateOptions{})
		return err
	})
}

// each calls f for 0 to n-1, several at once, until one fails.
func each(ctx context.Context, n int, f func(int) error) error {
	const workers = 16
	var next atomic.Int64
	var group sync.WaitGroup
	var first error
	var once sync.Once
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range workers {
		group.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					once.Do(func() { first = err })
					cancel()
				}
			}
		})
	}
	group.Wait()
	if first == nil && int(next.Load()) < n {
		return context.Cause(ctx)
	}
	return first
}
