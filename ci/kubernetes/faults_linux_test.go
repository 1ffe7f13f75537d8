// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
)

// outage is how long the API server is gone. A minute was tried by hand; what
// can go wrong does so within seconds.
const outage = 15 * time.Second

// soon is how quickly a change made during an outage must be applied once the server is
// ready again.
const soon = time.Second

// TestServerKilled kills the API server under load and changes an endpoint
// through another one during the outage. No new connection may fail.
func TestServerKilled(t *testing.T) {
	c := start(t, cluster.Options{})
	n := servingNode(t, c)

	spare, err := c.Spare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stop := n.load(t.Context())
	c.KillServer()
	time.Sleep(outage / 2)
	n.write(spare, "10.244.1.3")
	time.Sleep(outage / 2)
	if got, err := n.reach(); err != nil || got != "10.244.1.2" {
		t.Errorf("with no server %s answers (%v), want the last state", got, err)
	}
	if err := c.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := n.answers(soon, "10.244.1.3")
	t.Logf("%d new connections while the server was gone for %s, none failed; a change made during the outage was applied %s after it was ready again",
		stop(), outage, took.Round(time.Millisecond))

	n.write(c.Client(), "10.244.1.4")
	t.Logf("the next change: %s", n.answers(soon, "10.244.1.4").Round(time.Millisecond))
}

// TestServerDownAtStart starts tandem, on a node where it has run before, while
// there is no server: installed rules stay until there is one.
func TestServerDownAtStart(t *testing.T) {
	c := start(t, cluster.Options{})
	n := newNode(t, c)
	n.write(c.Client(), "10.244.1.2")
	kubeconfig := proxier(t, c)
	n.run(kubeconfig)
	n.answers(10*time.Second, "10.244.1.2")
	n.process.Kill()
	n.write(c.Client(), "10.244.1.3")
	c.KillServer()

	stop := n.load(t.Context())
	n.run(kubeconfig)
	n.says(5*time.Second, "API server", "172.31.0.1:6443", "connection refused")
	time.Sleep(2 * time.Second)
	if got, err := n.reach(); err != nil || got != "10.244.1.2" {
		t.Errorf("with no server %s answers (%v), want the last state", got, err)
	}
	if err := c.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := n.answers(soon, "10.244.1.3")
	t.Logf("%d new connections, none failed; everything was applied %s after the server came", stop(), took.Round(time.Millisecond))
}

// servingNode is a node whose tandem serves the Service web with one endpoint.
func servingNode(t *testing.T, c *cluster.Cluster) *node {
	t.Helper()
	n := newNode(t, c)
	n.write(c.Client(), "10.244.1.2")
	n.run(proxier(t, c))
	n.answers(10*time.Second, "10.244.1.2")
	return n
}

// proxier returns a kubeconfig with the rights that every cluster gives to
// kube-proxy.
func proxier(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	kubeconfig, err := c.Kubeconfig("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}
