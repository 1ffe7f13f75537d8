// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/netns"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// atOnce is how many scenarios run at once, each on an API server of its own.
const atOnce = 2

func TestMain(m *testing.M) { netns.Main(m, atOnce) }

// building makes the program once for all tests.
var building = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "tandem-test-")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-o", dir, "../../cmd/tandem").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return filepath.Join(dir, "tandem"), nil
})

// program returns the path of tandem.
func program(t *testing.T) string {
	t.Helper()
	bin, err := building()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

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
