// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// Where an external IP might be another node's all Nodes are read, and this machine's is still known as its own.
func TestListedServerHasItsNodeAmongOthers(t *testing.T) {
	server, err := apitest.Start(apitest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	for _, name := range []string{"this", "other"} {
		server.Put(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: name}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
		})
	}
	server.Put(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, ExternalIPs: []string{"203.0.113.1"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	})
	c := config.Default()
	c.NodeName, c.API.Kubeconfig = "this", filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(c.API.Kubeconfig, []byte(server.Kubeconfig("{token: secret}")), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, err := listServer(ctx, &c)
	if err != nil {
		t.Fatal(err)
	}
	if n := ownNode(in.Nodes, "this"); n == nil || n.Zone != "this" || len(in.Services) != 1 {
		t.Errorf("%+v, and %d Services", n, len(in.Services))
	}
	if !slices.ContainsFunc(in.Nodes, func(n *model.Node) bool { return n.Name == "other" }) {
		t.Error("the other Node is not among them")
	}
}
