// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
)

// manifests returns the objects of a file of installers/kubernetes.
func manifests(t *testing.T, name string) (all []*unstructured.Unstructured) {
	t.Helper()
	f, err := os.Open("../../installers/kubernetes/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := yaml.NewYAMLOrJSONDecoder(f, 1<<12); ; {
		u := &unstructured.Unstructured{}
		err := d.Decode(u)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(u.Object) > 0 {
			all = append(all, u)
		}
	}
}

// TestManifests sends every object to a real API server, validated strictly, with all
// of its admission, and checks the result, also for the pods.
func TestManifests(t *testing.T) {
	c := start(t, cluster.Options{})
	s := newApplier(t, c)
	namespace(t, c)
	for _, name := range []string{"tandem.yaml", "testdata/own.yaml"} {
		seen := 0
		for _, u := range manifests(t, name) {
			if u.GetKind() == "PodMonitor" {
				t.Logf("%s: PodMonitor is not applied: its definition comes with the Prometheus operator", name)
				continue
			}
			if err := s.apply(t.Context(), u, u.GetKind() != "ServiceAccount"); err != nil {
				t.Errorf("%s: %s %s: %v", name, u.GetKind(), u.GetName(), err)
			}
			seen++
			if u.GetKind() == "DaemonSet" {
				pod := podOf(t, u)
				if _, err := c.Client().CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: "Strict"}); err != nil {
					t.Errorf("%s: a pod of %s: %v", name, u.GetName(), err)
				}
			}
		}
		if seen < 6 {
			t.Errorf("%s: only %d objects", name, seen)
		}
	}
	bad := manifests(t, "tandem.yaml")[0]
	bad.Object["sepc"] = map[string]any{"a": "b"}
	if err := s.apply(t.Context(), bad, true); err == nil || !strings.Contains(err.Error(), "sepc") {
		t.Errorf("an unknown field passes: %v", err)
	}
}

// namespace makes the one that the manifests are for: there is no controller
// that would.
func namespace(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	if _, err := c.Client().CoreV1().Namespaces().Get(t.Context(), ns.Name, metav1.GetOptions{}); err == nil {
		return
	}
	if _, err := c.Client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// podOf is the pod that a DaemonSet makes.
func podOf(t *testing.T, u *unstructured.Unstructured) *corev1.Pod {
	t.Helper()
	var set appsv1.DaemonSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &set, true); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Namespace, pod.Name = set.Namespace, set.Name+"-of-a-test"
	pod.Spec.NodeName = "node-1"
	return pod
}

// applier is `kubectl apply --server-side --validate=strict`, by an
// administrator.
type applier struct {
	client dynamic.Interface
	mapper meta.RESTMapper
}

func newApplier(t *testing.T, c *cluster.Cluster) applier {
	t.Helper()
	config, err := c.Config("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(d)
	if err != nil {
		t.Fatal(err)
	}
	return applier{client: client, mapper: restmapper.NewDiscoveryRESTMapper(groups)}
}

// apply applies an object, or only as a dry run.
func (a applier) apply(ctx context.Context, u *unstructured.Unstructured, dry bool) error {
	kind := u.GroupVersionKind()
	m, err := a.mapper.RESTMapping(schema.GroupKind{Group: kind.Group, Kind: kind.Kind}, kind.Version)
	if err != nil {
		return err
	}
	var to dynamic.ResourceInterface = a.client.Resource(m.Resource)
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		to = a.client.Resource(m.Resource).Namespace(u.GetNamespace())
	}
	data, err := u.MarshalJSON()
	if err != nil {
		return err
	}
	force := true
	o := metav1.PatchOptions{FieldManager: "test", FieldValidation: metav1.FieldValidationStrict, Force: &force}
	if dry {
		o.DryRun = []string{metav1.DryRunAll}
	}
	_, err = to.Patch(ctx, u.GetName(), "application/apply-patch+yaml", data, o)
	return err
}
