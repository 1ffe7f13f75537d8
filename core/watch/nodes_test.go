// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// Other Nodes are followed from when a Service has an external IP that might be theirs, and a start waits for them
// only then.
func TestOtherNodes(t *testing.T) {
	other := func(ip string) *corev1.Node {
		n := nodeIn("b")
		n.Name, n.Status.Addresses = "node-2", []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
		return n
	}
	external := func(ip string) *corev1.Service {
		s := service("out", 80)
		s.Spec.ExternalIPs = []string{ip}
		return s
	}
	w := newWorld(t, apitest.Options{})
	w.server.Put(other("192.0.2.2"))
	others := func() string {
		w.sink.mu.Lock()
		defer w.sink.mu.Unlock()
		if n := w.sink.others["node-2"]; n != nil {
			return n.IPs[0].String()
		}
		return ""
	}
	w.config.ExternalIPs.Allowed = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	w.run().synced()
	w.server.Put(external("203.0.113.1"))
	w.until("the Service", func() bool { return strings.Contains(w.sink.state(), "default/out") })
	if got := others(); got != "" || len(w.source.Resources()) != 4 {
		t.Errorf("other Nodes are followed without need: %q", got)
	}
	w.server.Put(external("192.0.2.2"))
	w.until("the other Node", func() bool { return others() == "192.0.2.2" })
	w.server.Put(other("192.0.2.3"))
	w.until("its new address", func() bool { return others() == "192.0.2.3" })
	w.server.Delete(other("192.0.2.3"))
	w.until("its end", func() bool { return others() == "" })
	if w.sink.node == nil || w.sink.node.Name != thisNode {
		t.Errorf("our own Node is %v", w.sink.node)
	}

	again := newWorld(t, apitest.Options{})
	again.server.Put(other("192.0.2.2"), external("192.0.2.2"))
	again.run().synced()
	if again.sink.others["node-2"] == nil {
		t.Error("a start did not wait for the other Nodes")
	}
}
