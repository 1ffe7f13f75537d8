// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// TestKubeProxyLosesConnections measures kube-proxy in the rig of TestFailover: it is no
// claim of ours, and shows that the rig can lose connections.
func TestKubeProxyLosesConnections(t *testing.T) {
	program := kubeProxyProgram(t)
	f := newFailoverSite(t)
	var api *apitest.Server
	err := f.net.Do(lab.Node, func() (err error) {
		api, err = apitest.Start(apitest.Options{Plain: true})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer api.Stop()
	api.Put(objects(t, f.manifest())...)
	cmd := exec.Command(program, "--master="+api.URL(), "--kube-api-content-type=application/json", "--proxy-mode=nftables",
		"--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16", "--nodeport-addresses=0.0.0.0/0", "--conntrack-max-per-core=0")
	cmd.Stderr = &f.log
	if err := f.net.Do(lab.Node, cmd.Start); err != nil {
		t.Fatal(err)
	}
	f.cmd = cmd
	f.eventually(time.Minute, "kube-proxy serves", func() error { return f.reach(clusterIP) })
	time.Sleep(2 * time.Second)
	f.load(100, 2*time.Second)
	f.silence(true, 2)
	all := f.load(100, 5*time.Second)
	if failures(all) == 0 {
		t.Error("the rig loses no connections")
	}
	f.result("kube-proxy, nftables", all, 0, f.returns(2))
}

// objects reads manifests as the API server would complete them.
func objects(t *testing.T, manifest string) (all []runtime.Object) {
	t.Helper()
	for doc := range strings.SplitSeq(manifest, "---\n") {
		var kind struct{ Kind string }
		read := func(into any) {
			t.Helper()
			if err := yaml.Unmarshal([]byte(doc), into); err != nil {
				t.Fatal(err)
			}
		}
		read(&kind)
		switch kind.Kind {
		case "Service":
			var s corev1.Service
			read(&s)
			s.Namespace, s.Spec.ClusterIPs, s.Spec.IPFamilies = "default", []string{s.Spec.ClusterIP}, []corev1.IPFamily{corev1.IPv4Protocol}
			s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
			s.Spec.ExternalTrafficPolicy, s.Spec.SessionAffinity = corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceAffinityNone
			all = append(all, &s)
		case "EndpointSlice":
			var s discoveryv1.EndpointSlice
			read(&s)
			s.Namespace = "default"
			all = append(all, &s)
		case "Node":
			var n corev1.Node
			read(&n)
			all = append(all, &n)
		}
	}
	return all
}
