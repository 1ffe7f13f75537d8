// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform/connectivity"
)

// TestConnectivityInCluster: tandem test connectivity --in-cluster makes pods and Services at a
// real API server, connects to every frontend, and leaves nothing, also when the pods never
// run. What controllers and kubelets do for a namespace, the test does: its
// ServiceAccount, and EndpointSlices with servers of the node in place of the pods.
func TestConnectivityInCluster(t *testing.T) {
	c := start(t, cluster.Options{})
	n := newNode(t, c)
	n.run(proxier(t, c))
	n.write(c.Client(), "10.244.1.2")
	n.answers(time.Minute, "10.244.1.2")
	admin, err := c.Kubeconfig("someone", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	test := func(runs bool, more ...string) (r connectivity.Report, said string, code int) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); n.controllers(ctx, runs) }()
		defer func() { stop(); <-done }()
		cmd := exec.Command(n.bin, append([]string{"test", "connectivity", "--in-cluster", "--image", "example.com/backend", "--kubeconfig", admin, "-o", "json"}, more...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := n.net.Do(lab.Node, cmd.Start); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the exit code is checked
		n.nothingLeft()
		if out.Len() > 0 {
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatalf("%v: %s", err, out.Bytes())
			}
		}
		return r, errs.String(), cmd.ProcessState.ExitCode()
	}
	r, said, code := test(true)
	kinds := map[string]bool{}
	for _, row := range r.Rows {
		kinds[row.Service[strings.Index(row.Service, "/")+1:]+" "+row.Kind] = true
		if row.Verdict != connectivity.OK {
			t.Errorf("%+v", row)
		}
	}
	if code != 0 || len(kinds) != 8 || r.Connections != 8 {
		t.Errorf("exit code %d, %d kinds of frontends, %d connections: %v\n%s", code, len(kinds), r.Connections, kinds, said)
	}
	if _, said, code := test(false, "--timeout", "3s"); code != 1 || !strings.Contains(said, "does image example.com/backend run") {
		t.Errorf("pods that never run: exit code %d: %s", code, said)
	}
}

// testNamespaces are those of the test that are there, and not going.
func (n *node) testNamespaces(ctx context.Context) (names []string) {
	all, err := n.cluster.Client().CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=tandem-test"})
	if err != nil {
		return nil // once more
	}
	for _, ns := range all.Items {
		if ns.DeletionTimestamp == nil {
			names = append(names, ns.Name)
		}
	}
	return names
}

// controllers does for namespaces of the test what a cluster does, until ctx ends. Errors are
// those of the test: it waits for the result.
func (n *node) controllers(ctx context.Context, running bool) {
	client := n.cluster.Client()
	port, here := int32(8080), "node-1"
	for ctx.Err() == nil {
		for _, ns := range n.testNamespaces(ctx) {
			_, _ = client.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
			for _, service := range []string{"cluster", "local", "affinity"} {
				if running {
					_, _ = client.DiscoveryV1().EndpointSlices(ns).Create(ctx, &discoveryv1.EndpointSlice{
						ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
						AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
						Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.3"}, NodeName: &here}},
					}, metav1.CreateOptions{})
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// nothingLeft checks that the test has deleted its namespaces and what was in them: pods end
// with their kubelet, and namespaces with a controller, of which there are none here.
func (n *node) nothingLeft() {
	n.t.Helper()
	if names := n.testNamespaces(n.t.Context()); len(names) > 0 {
		n.t.Errorf("namespaces are left: %v", names)
	}
	client := n.cluster.Client().CoreV1()
	services, err := client.Services("").List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, s := range services.Items {
		if strings.HasPrefix(s.Namespace, "tandem-test-") {
			n.t.Errorf("Service %s/%s is left", s.Namespace, s.Name)
		}
	}
	pods, err := client.Pods("").List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range pods.Items {
		if strings.HasPrefix(p.Namespace, "tandem-test-") && p.DeletionTimestamp == nil {
			n.t.Errorf("Pod %s/%s is left", p.Namespace, p.Name)
		}
	}
}
