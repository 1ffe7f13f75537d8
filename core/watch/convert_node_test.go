// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
)

func TestNode(t *testing.T) {
	got, problems := Node(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelTopologyZone: "zone-a"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.9.0.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:10:244:1::/64", "bad"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "node-1"},
			{Type: corev1.NodeExternalIP, Address: "198.51.100.1"},
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeInternalIP, Address: "fe80::1"},
			{Type: corev1.NodeInternalIP, Address: "127.0.0.1"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeExternalIP, Address: "node.example.com"},
		}},
	})
	expect(t, problems,
		"BadAddress: status.addresses[4].address: 127.0.0.1 (not a node address)",
		"BadAddress: status.addresses[6].address: node.example.com (not an IP address)",
		"BadRange: spec.podCIDRs[2]: bad")
	want := &model.Node{
		Name: "node-1", Zone: "zone-a", IPs: addrs("192.0.2.1", "fe80::1", "198.51.100.1"),
		PodCIDRs: nets("10.244.1.0/24", "fd00:10:244:1::/64"),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for _, p := range problems {
		if p.Object != "Node node-1" {
			t.Errorf("object is %q", p.Object)
		}
	}
}

func TestNodePodCIDRAlone(t *testing.T) {
	got, problems := Node(&corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.244.1.7/24"}})
	if expect(t, problems); !reflect.DeepEqual(got.PodCIDRs, nets("10.244.1.0/24")) {
		t.Errorf("got %v", got.PodCIDRs)
	}
	if got, problems := Node(nil); got != nil || problems != nil {
		t.Errorf("nil: %v, %v", got, problems)
	}
}

func TestNodeLeaving(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		node corev1.Node
		want bool
	}{
		"no":       {corev1.Node{}, false},
		"deleted":  {corev1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, true},
		"tainted":  {corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "x"}, {Key: taintLeaving, Value: "1"}}}}, true},
		"cordoned": {corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, false},
	} {
		if got, _ := Node(&c.node); got.Leaving != c.want {
			t.Errorf("%s: %t", name, got.Leaving)
		}
	}
}
