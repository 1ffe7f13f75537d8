// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/netns"
	"github.com/tandem-proxy/tandem/core/metrics"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

func TestMain(m *testing.M) { netns.Main(m, 1) }

func start(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	if err := lab.Available(); err != nil {
		t.Skip(err)
	}
	var err error
	if o.Binaries, err = cluster.Find(t.Context(), "../upstream"); err != nil {
		t.Skip(err)
	}
	o.Dir = t.TempDir()
	begin := time.Now()
	c, err := cluster.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestCluster starts a control plane, asks it as different users, and kills and
// restarts its server.
func TestCluster(t *testing.T) {
	c := start(t, cluster.Options{Audit: true})
	proxier, err := c.Config("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(proxier)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a proxy may list Services: %v", err)
	}
	if _, err := client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a proxy may not list Secrets: %v", err)
	}

	c.KillServer()
	if _, err := c.Client().Discovery().ServerVersion(); err == nil {
		t.Error("the server answers after it was killed")
	}
	begin := time.Now()
	if err := c.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready again after %s", time.Since(begin).Round(time.Millisecond))
	v, err := c.Client().Discovery().ServerVersion()
	if err != nil || v.GitVersion != "v"+metrics.Kubernetes {
		t.Errorf("version %v, %v", v, err)
	}

	requests, err := c.Requests()
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]int{}
	for _, r := range requests {
		if r.User.Username == "system:kube-proxy" {
			codes[r.Verb+" "+r.ObjectRef.Resource] = r.ResponseStatus.Code
		}
	}
	if len(codes) != 2 || codes["list services"] != 200 || codes["list secrets"] != 403 {
		t.Errorf("the server noted %v", codes)
	}
}

// TestNothingStarts checks that a cluster that cannot start returns the reason and leaves
// nothing.
func TestNothingStarts(t *testing.T) {
	if err := lab.Available(); err != nil {
		t.Skip(err)
	}
	_, err := cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir(), Binaries: cluster.Binaries{Etcd: "/bin/false", APIServer: "/bin/false"}})
	if err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("got %v", err)
	}
}
