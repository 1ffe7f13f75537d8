// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// cloudPeriod is how often Services are read and nodes asked: a cloud's health checks are no quicker.
const cloudPeriod = 500 * time.Millisecond

// runCloud plays the cloud's load balancers in the control machine, until it is killed: it gives Services
// their addresses and routes these. The file has the plan.
func runCloud(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	settings, err := clientcmd.BuildConfigFromFlags("", configDir+"/admin.conf")
	if err != nil {
		return err
	}
	settings.QPS = -1
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		return err
	}
	c := balancers{cloud: cloud{nodes: p.Workers, used: map[netip.Addr]string{}}, client: client, routes: map[netip.Addr]string{}}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := c.round(ctx); err != nil {
			fmt.Println(time.Now().Format(time.TimeOnly), err)
		}
		cancel()
		time.Sleep(cloudPeriod)
	}
}

// balancers is the cloud with its means.
type balancers struct {
	cloud
	client kubernetes.Interface
	routes map[netip.Addr]string
}

// round makes all load balancers what the Services say.
func (b *balancers) round(ctx context.Context) error {
	list, err := b.client.CoreV1().Services("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	var errs []error
	keep := map[string]bool{}
	for i := range list.Items {
		s := &list.Items[i]
		if balanced(s) {
			keep[key(s)] = true
			errs = append(errs, b.ensure(ctx, s))
		}
	}
	for _, a := range b.forget(keep) {
		errs = append(errs, b.set(a, b.route(a, nil)))
	}
	for i := range list.Items {
		if s := &list.Items[i]; !balanced(s) {
			errs = append(errs, b.release(ctx, s))
		}
	}
	return errors.Join(errs...)
}

// ensure gives a Service its finalizer, its load balancer and its status.
func (b *balancers) ensure(ctx context.Context, s *corev1.Service) error {
	if !slices.Contains(s.Finalizers, cleanupFinalizer) {
		if err := b.finalizers(ctx, s, append(slices.Clone(s.Finalizers), cleanupFinalizer)); err != nil {
			return err
		}
	}
	all, err := b.addresses(s)
	if err != nil {
		return err
	}
	healthy := b.nodes
	if checked(s) {
		healthy = b.healthy(ctx, s.Spec.HealthCheckNodePort)
	}
	for _, a := range all {
		if err := b.set(a, b.route(a, healthy)); err != nil {
			return err
		}
	}
	return b.say(ctx, s, status(all))
}

// release takes the status and the finalizer from a Service that has no load balancer any more.
func (b *balancers) release(ctx context.Context, s *corev1.Service) error {
	if !slices.Contains(s.Finalizers, cleanupFinalizer) {
		return nil
	}
	if err := b.say(ctx, s, corev1.LoadBalancerStatus{}); err != nil {
		return err
	}
	return b.finalizers(ctx, s, slices.DeleteFunc(slices.Clone(s.Finalizers), func(f string) bool { return f == cleanupFinalizer }))
}

func (b *balancers) finalizers(ctx context.Context, s *corev1.Service, all []string) error {
	return b.patch(ctx, s, map[string]any{"metadata": map[string]any{"finalizers": all}})
}

func (b *balancers) say(ctx context.Context, s *corev1.Service, want corev1.LoadBalancerStatus) error {
	if sameStatus(s.Status.LoadBalancer, want) {
		return nil
	}
	return b.patch(ctx, s, map[string]any{"status": map[string]any{"loadBalancer": want}}, "status")
}

func (b *balancers) patch(ctx context.Context, s *corev1.Service, change any, sub ...string) error {
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = b.client.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, "application/merge-patch+json", data, metav1.PatchOptions{}, sub...)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// healthy are the nodes whose health check node port answers that they have endpoints.
func (b *balancers) healthy(ctx context.Context, port int32) (all []node) {
	for _, n := range b.nodes {
		ctx, cancel := context.WithTimeout(ctx, cloudPeriod)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(n.Addr[0], uint16(port)).String()+"/healthz", nil)
		if err == nil {
			if answer, err := http.DefaultClient.Do(request); err == nil {
				answer.Body.Close()
				if answer.StatusCode == http.StatusOK {
					all = append(all, n)
				}
			}
		}
		cancel()
	}
	return all
}

// set sets a route, unless it is set.
func (b *balancers) set(a netip.Addr, command string) error {
	if b.routes[a] == command {
		return nil
	}
	if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", command, err, out)
	}
	b.routes[a] = command
	return nil
}
