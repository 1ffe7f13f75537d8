// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// TestHostProcess runs the container of the Windows DaemonSet as containerd
// before 1.7 does: its volumes are not at the pod's paths, but under the
// sandbox's mount point.
func TestHostProcess(t *testing.T) {
	p := open(t)
	n := newNode(t, p, hnsemu.WS2022)
	api := startAPI(t, apitest.Options{})
	api.Put(slice("10.244.1.2"))
	sandbox := t.TempDir()
	pod, settings := windowsPod(t)
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(sandbox, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("var/lib/kube-proxy/config.conf", settings+"metricsBindAddress: 127.0.0.1:42049\nhealthzBindAddress: 127.0.0.1:42056\n")
	write("var/lib/kube-proxy/kubeconfig.conf", `apiVersion: v1
kind: Config
clusters: [{name: default, cluster: {server: '`+api.URL()+`', certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}}]
users: [{name: default, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}]
contexts: [{name: default, context: {cluster: default, user: default}}]
current-context: default
`)
	write("var/run/secrets/kubernetes.io/serviceaccount/token", "the token of the pod")
	write("var/run/secrets/kubernetes.io/serviceaccount/ca.crt", string(api.CA()))

	if o := pod.SecurityContext.WindowsOptions; o == nil || !*o.HostProcess || !pod.HostNetwork {
		t.Fatalf("the pod is no HostProcess one: %+v", o)
	}
	args := []string{n.exe}
	for _, a := range pod.Containers[0].Args {
		args = append(args, strings.ReplaceAll(a, "$(NODE_NAME)", "node-1"))
	}
	c := p.command(args...)
	c.Env = append(c.Env, "HNSEMU_ADDR="+n.addr, "CONTAINER_SANDBOX_MOUNT_POINT="+windowsPath(sandbox))
	n.startAs(c)
	n.serves("10.96.0.10", "10.244.1.2")
	api.Put(slice("10.244.1.3"))
	n.serves("10.96.0.10", "10.244.1.3")
	for _, r := range api.Requests("", "services") {
		if r.Token != "the token of the pod" {
			t.Errorf("%s of services with token %q", r.Verb, r.Token)
		}
	}
	n.stop(func(p *os.Process) error { return p.Signal(os.Interrupt) })
	n.sound()
}

// windowsPod reads the pod of the Windows DaemonSet, and its configuration, from
// the manifests.
func windowsPod(t *testing.T) (pod corev1.PodSpec, settings string) {
	t.Helper()
	text, err := os.ReadFile("../../installers/kubernetes/tandem.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var set appsv1.DaemonSet
		var config corev1.ConfigMap
		if yaml.Unmarshal([]byte(doc), &set) == nil && set.Kind == "DaemonSet" && set.Name == "tandem-windows" {
			pod = set.Spec.Template.Spec
		}
		if yaml.Unmarshal([]byte(doc), &config) == nil && config.Kind == "ConfigMap" && config.Name == "tandem-windows" {
			settings = config.Data["config.conf"] + "\n"
		}
	}
	if len(pod.Containers) != 1 || settings == "" {
		t.Fatal("the manifests have no pod for Windows")
	}
	return pod, settings
}
