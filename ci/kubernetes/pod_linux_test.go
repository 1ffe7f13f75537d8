// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// TestPod installs the manifests into a cluster as kubeadm leaves it, and runs
// the Linux pod as a kubelet would: its init container, then its container, with
// the arguments, the files, the capabilities and the read-only root of its
// spec.
func TestPod(t *testing.T) {
	c := start(t, cluster.Options{Audit: true})
	n := newNode(t, c)
	namespace(t, c)
	s := newApplier(t, c)
	var spec corev1.PodSpec
	for _, u := range manifests(t, "tandem.yaml") {
		if err := s.apply(t.Context(), u, false); err != nil {
			t.Fatal(err)
		}
		if u.GetKind() == "DaemonSet" && u.GetName() == "tandem" {
			spec = podOf(t, u).Spec
		}
	}
	n.write(c.Client(), "10.244.1.2")
	k := newKubelet(t, n, kubeadm(t))

	if err := k.run(spec.InitContainers[0]).Stop(20 * time.Second); err != nil {
		t.Fatalf("the init container: %v", err)
	}
	main := spec.Containers[0]
	n.process = k.run(main)
	n.answers(10*time.Second, "10.244.1.2")
	n.write(c.Client(), "10.244.1.3")
	n.answers(soon, "10.244.1.3")
	for _, probe := range []*corev1.Probe{main.ReadinessProbe, main.LivenessProbe} {
		n.eventually(10*time.Second, probe.HTTPGet.Path, func() error { return k.probe(probe.HTTPGet) })
	}
	k.confined(n.process.PID())
	if err := n.process.Stop(5 * time.Second); err != nil {
		t.Error(err)
	}
	if got, err := n.reach(); err != nil || got != "10.244.1.3" {
		t.Errorf("after its end %s answers (%v): what is programmed stays", got, err)
	}
	requests, err := c.Requests()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		if r.User.Username == "system:serviceaccount:kube-system:tandem" && r.ResponseStatus.Code >= 401 && r.ResponseStatus.Code <= 403 {
			t.Errorf("its role does not let it %s %s", r.Verb, r.ObjectRef.Resource)
		}
	}
}

// kubeadm is the ConfigMap kube-proxy as kubeadm makes it.
func kubeadm(t *testing.T) map[string]string {
	t.Helper()
	config, err := os.ReadFile("../../core/config/file/testdata/kubeadm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"config.conf": string(config),
		"kubeconfig.conf": `apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    server: ` + cluster.Server + `
  name: default
contexts:
- context: {cluster: default, namespace: default, user: default}
  name: default
current-context: default
users:
- name: default
  user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}
`,
	}
}

// kubelet runs containers of one pod on a node: all have the same files.
type kubelet struct {
	*testing.T
	node    *node
	runtime string
	root    string
}

// newKubelet makes what the containers find in their root: the program, a
// ConfigMap, and a token of the service account.
func newKubelet(t *testing.T, n *node, config map[string]string) *kubelet {
	t.Helper()
	dir := t.TempDir()
	k := &kubelet{T: t, node: n, runtime: filepath.Join(dir, "container"), root: filepath.Join(dir, "root")}
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	for _, d := range []string{"/proc", "/var/lib/kube-proxy", account} {
		if err := os.MkdirAll(k.root+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for to, from := range map[string]string{k.runtime: "./container", k.root + "/tandem": "../../cmd/tandem"} {
		build := exec.Command("go", "build", "-o", to, from)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v: %s", err, out)
		}
	}
	for name, text := range config {
		k.write("/var/lib/kube-proxy/"+name, text)
	}
	ca, err := os.ReadFile(filepath.Join(n.cluster.Dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	k.write(account+"/ca.crt", string(ca))
	subject := rbacv1.Subject{Kind: "ServiceAccount", Namespace: metav1.NamespaceSystem, Name: "tandem"}
	if err := token(t.Context(), n.cluster.Client(), subject, k.root+account+"/token"); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *kubelet) write(name, text string) {
	k.Helper()
	if err := os.WriteFile(k.root+name, []byte(text), 0o600); err != nil {
		k.Fatal(err)
	}
}

// run starts a container. Its entry point is the program.
func (k *kubelet) run(c corev1.Container) *cluster.Process {
	k.Helper()
	var args []string
	if p := c.SecurityContext.Privileged; p != nil && *p {
		args = append(args, "-privileged")
	} else if drop := c.SecurityContext.Capabilities.Drop; !slices.Equal(drop, []corev1.Capability{"ALL"}) {
		k.Fatalf("capabilities dropped: %v", drop)
	} else {
		args = append(args, "-add="+strings.Join(words(c.SecurityContext.Capabilities.Add), ","))
	}
	if r := c.SecurityContext.ReadOnlyRootFilesystem; r == nil || !*r {
		k.Fatal("the root is not read-only")
	}
	args = append(args, k.root, "/tandem")
	for _, a := range c.Args {
		args = append(args, strings.ReplaceAll(a, "$(NODE_NAME)", "node-1"))
	}
	cmd := exec.Command(k.runtime, args...)
	cmd.Env = []string{"NODE_NAME=node-1", "KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443"}
	p, err := cluster.Run(k.node.net, lab.Node, k.node.log, cmd)
	if err != nil {
		k.Fatal(err)
	}
	return p
}

func words[S ~string](all []S) (out []string) {
	for _, s := range all {
		out = append(out, string(s))
	}
	return out
}

// probe asks what a kubelet asks, on the node's address.
func (k *kubelet) probe(get *corev1.HTTPGetAction) error {
	address := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(get.Port.IntValue()))
	dial := func(context.Context, string, string) (net.Conn, error) {
		return k.node.net.Connect(lab.Call{From: lab.Node, Proto: model.TCP, To: address, Timeout: time.Second})
	}
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	res, err := client.Get("http://" + address.String() + get.Path)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", res.Status)
	}
	return nil
}

// confined reads in /proc that a process has CAP_NET_ADMIN and no more.
func (k *kubelet) confined(pid int) {
	k.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		k.Fatal(err)
	}
	const netAdmin = "0000000000001000"
	for _, want := range []string{"CapPrm:\t" + netAdmin, "CapEff:\t" + netAdmin, "CapBnd:\t" + netAdmin, "NoNewPrivs:\t1"} {
		if !bytes.Contains(status, []byte(want)) {
			k.Errorf("the process has not %q:\n%s", want, status)
		}
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/new", pid), nil, 0o600); err == nil {
		k.Error("its root can be written")
	}
}
