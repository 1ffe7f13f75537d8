// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"testing"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/netns"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// atOnce is how many scenarios run at once, each on an API server of its own.
const atOnce = 2

func TestMain(m *testing.M) { netns.Main(m, atOnce) }

// start starts a control plane for a test, or skips it.
func start(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	if err := lab.Available(); err != nil {
		t.Skip(err)
	}
	binaries, err := cluster.Find(t.Context(), "upstream")
	if err != nil {
		t.Skip(err)
	}
	if o.Binaries.Etcd != "" {
		binaries.Etcd = o.Binaries.Etcd
	}
	o.Binaries = binaries
	o.Dir = t.TempDir()
	c, err := cluster.Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
