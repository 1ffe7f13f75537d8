// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// grantTime is how long a token that has lost its right may still be accepted: what Tandem
// remembers of it (a minute), and what the API server does of tokens and roles.
const grantTime = 80 * time.Second

// TestStatusByToken asks for the status through the API server's proxy of pods, as kubectl tandem
// does, with the rights that the chart gives to tandem, its readers and their users; and asks all else by both ways.
func TestStatusByToken(t *testing.T) {
	c := start(t, cluster.Options{})
	n := newNode(t, c)
	namespace(t, c)
	s := newApplier(t, c)
	for _, u := range manifests(t, "testdata/own.yaml") {
		switch u.GetKind() {
		case "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role":
			if err := s.apply(t.Context(), u, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	tandem := rbacv1.Subject{Kind: "ServiceAccount", Namespace: metav1.NamespaceSystem, Name: "tandem"}
	file := filepath.Join(t.TempDir(), "token")
	if err := token(t.Context(), c.Client(), tandem, file); err != nil {
		t.Fatal(err)
	}
	own, err := c.TokenKubeconfig(file)
	if err != nil {
		t.Fatal(err)
	}
	n.write(c.Client(), "10.244.1.2")
	n.run(own, "--metrics-bind-address=0.0.0.0:10249")
	n.answers(10*time.Second, "10.244.1.2")
	p := proxied{client: c.Client(), pod: "tandem-of-node-1"}
	if err := p.create(t.Context(), n); err != nil {
		t.Fatal(err)
	}

	for name, test := range map[string]struct {
		account  string
		audience string
		code     int
	}{
		"no token":                 {"", "", http.StatusUnauthorized},
		"of the reader":            {"tandem-status", "tandem", http.StatusOK},
		"for the API server":       {"tandem-status", "", http.StatusUnauthorized},
		"for another audience":     {"tandem-status", "vault", http.StatusUnauthorized},
		"of one without the right": {"default", "tandem", http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			if err := p.status(t.Context(), test.account, test.audience); codeOf(err) != test.code {
				t.Errorf("%v, want %d", err, test.code)
			}
		})
	}
	t.Run("kubectl", func(t *testing.T) { kubectlTandem(t, n) })
	if t.Run("exec", func(t *testing.T) { kubectlTandemByExec(t, n) }); t.Failed() {
		return
	}

	// A token that has been accepted, and one that has not been seen, lose the right.
	seen, err := p.token(t.Context(), "tandem-status", "tandem")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.get(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if err := c.Client().RbacV1().ClusterRoleBindings().Delete(t.Context(), "tandem-status", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	taken := time.Now()
	n.eventually(10*time.Second, "a new token is refused", func() error {
		if err := p.status(t.Context(), "tandem-status", "tandem"); codeOf(err) != http.StatusForbidden {
			return fmt.Errorf("answer %v", err)
		}
		return nil
	})
	for err = p.get(t.Context(), seen); err == nil; err = p.get(t.Context(), seen) {
		if time.Since(taken) > grantTime {
			t.Fatalf("a token is still accepted %s after its user lost the right", time.Since(taken))
		}
		time.Sleep(time.Second)
	}
	if codeOf(err) != http.StatusForbidden {
		t.Errorf("after the right was taken: %v", err)
	}
	t.Logf("a token that was in use is refused %s after its user lost the right", time.Since(taken).Round(time.Second))
}

// kubectlTandem runs the plug-in as a user who has no more rights than the chart's Role gives: by the proxy of pods.
func kubectlTandem(t *testing.T, n *node) {
	bindRole(t, n, "operator", "tandem-kubectl")
	verbs := []string{
		"status", "diff", "status --node node-1", "services --all-nodes", "explain --node node-1 host default/web", "trace --all-nodes host default/web",
		"drift --node node-1", "history --all-nodes",
	}
	runPlugin(t, n, "operator", "proxy", verbs...)
}

// kubectlTandemByExec runs it as a user who may exec in the pods, and nothing else, with a kubelet that runs programs
// in the node's network.
func kubectlTandemByExec(t *testing.T, n *node) {
	if err := serveKubelet(t, n); err != nil {
		t.Fatal(err)
	}
	_, err := n.cluster.Client().RbacV1().Roles(metav1.NamespaceSystem).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "tandem-exec"},
		Rules: []rbacv1.PolicyRule{ // as the manual has it
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
			{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"get", "create"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bindRole(t, n, "administrator", "tandem-exec")
	runPlugin(t, n, "administrator", "auto", "status", "services --all-nodes", "explain --node node-1 host default/web", "snapshot --node node-1")
}

// bindRole gives a user a Role of kube-system.
func bindRole(t *testing.T, n *node, user, role string) {
	_, err := n.cluster.Client().RbacV1().RoleBindings(metav1.NamespaceSystem).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user}, Subjects: []rbacv1.Subject{{Kind: "User", Name: user}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// runPlugin runs verbs of the plug-in as a user.
func runPlugin(t *testing.T, n *node, user, via string, verbs ...string) {
	kubeconfig, err := n.cluster.Kubeconfig(user)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range verbs {
		n.eventually(10*time.Second, "kubectl tandem "+verb, func() error { // the API server learns of roles in its time
			args := append([]string{"kubectl", "--via=" + via, "--kubeconfig=" + kubeconfig}, strings.Fields(verb)...)
			run, err := cluster.Run(n.net, lab.Node, filepath.Join(t.TempDir(), "kubectl.log"), exec.Command(n.bin, args...))
			if err != nil {
				return err
			}
			<-run.Done()
			if err := run.Stop(time.Second); err != nil {
				return fmt.Errorf("%w: %s", err, run.Said(10))
			}
			t.Logf("%s:\n%s", verb, run.Said(10))
			return nil
		})
	}
}

// serveKubelet has a kubelet of the node that only knows exec, as real ones do for the form v4.channel.k8s.io: it
// runs the program in the node's network.
func serveKubelet(t *testing.T, n *node) error {
	address, err := n.addressForServer()
	if err != nil {
		return err
	}
	var l net.Listener
	if err := n.net.Do(lab.Node, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(address.String(), "0"))
		return err
	}); err != nil {
		return err
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if command := r.URL.Query()["command"]; r.URL.Path != "/exec/kube-system/tandem-of-node-1/tandem" || fmt.Sprint(command) != "[tandem control]" {
			t.Errorf("the kubelet is asked for %s", r.URL)
		}
		websocket.Server{
			Handshake: func(c *websocket.Config, _ *http.Request) error {
				c.Protocol = []string{"v4.channel.k8s.io"}
				return nil
			},
			Handler: func(ws *websocket.Conn) {
				ws.PayloadType = websocket.BinaryFrame
				status := "Success"
				if runControl(r.Context(), n, ws) != nil { // also when the client has its answer, and has gone
					status = "Failure"
				}
				fmt.Fprintf(ws, "\x03"+`{"metadata":{},"status":%q}`, status)
			},
		}.ServeHTTP(w, r)
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.StartTLS()
	t.Cleanup(server.Close)
	nodes := n.cluster.Client().CoreV1().Nodes()
	object, err := nodes.Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil {
		return err
	}
	object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: address.String()}) // which the API server prefers
	object.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(l.Addr().(*net.TCPAddr).Port)
	_, err = nodes.UpdateStatus(t.Context(), object, metav1.UpdateOptions{})
	return err
}

// runControl runs tandem control in the node's network, with a WebSocket as its standard input and output.
func runControl(ctx context.Context, n *node, ws *websocket.Conn) error {
	cmd := exec.CommandContext(ctx, n.bin, "control")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := n.net.Do(lab.Node, cmd.Start); err != nil {
		return err
	}
	go func() {
		defer stdin.Close()
		for {
			var message []byte
			if websocket.Message.Receive(ws, &message) != nil || len(message) == 0 || message[0] != 0 {
				return
			}
			if _, err := stdin.Write(message[1:]); err != nil {
				return
			}
		}
	}()
	for part := make([]byte, 16<<10); ; {
		k, err := stdout.Read(part)
		if k > 0 {
			_, _ = ws.Write(append([]byte{1}, part[:k]...)) // the client may be gone
		}
		if err != nil {
			return cmd.Wait()
		}
	}
}

// proxied is a tandem that an administrator reaches through the API server, as a pod.
type proxied struct {
	client kubernetes.Interface
	pod    string
}

// create gives the cluster the pod, whose address is that of its node on the link to the API server.
func (p proxied) create(ctx context.Context, n *node) error {
	pods, no := p.client.CoreV1().Pods(metav1.NamespaceSystem), false
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.pod, Labels: map[string]string{"app.kubernetes.io/name": "tandem"}},
		Spec: corev1.PodSpec{
			NodeName: "node-1", HostNetwork: true, ServiceAccountName: "tandem", AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: "tandem", Image: "tandem"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	address, err := n.addressForServer()
	if err != nil {
		return err
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address.String(), PodIPs: []corev1.PodIP{{IP: address.String()}}}
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return err
	}
	_, err = p.client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// status asks with a new token of an account of kube-system, or without one.
func (p proxied) status(ctx context.Context, account, audience string) error {
	if account == "" {
		return p.get(ctx, "")
	}
	text, err := p.token(ctx, account, audience)
	if err != nil {
		return err
	}
	return p.get(ctx, text)
}

// token makes a token for an audience, or for the API server.
func (p proxied) token(ctx context.Context, account, audience string) (string, error) {
	r := &authenticationv1.TokenRequest{}
	if audience != "" {
		r.Spec.Audiences = []string{audience}
	}
	got, err := p.client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx, account, r, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return got.Status.Token, nil
}

// get asks for the status with a token, or without one.
func (p proxied) get(ctx context.Context, token string) error {
	r := p.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces", metav1.NamespaceSystem, "pods", p.pod+":10249", "proxy/status").SetHeader("Accept", "application/json")
	if token != "" {
		r = r.SetHeader("X-Tandem-Token", token)
	}
	return r.Do(ctx).Error()
}

// codeOf is the HTTP status of an answer.
func codeOf(err error) int {
	var of apierrors.APIStatus
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &of):
		return int(of.Status().Code)
	}
	return 0
}

// addressForServer is the node's address on its link to the API server.
func (n *node) addressForServer() (found netip.Addr, err error) {
	err = n.net.Do(lab.Node, func() error {
		link, err := net.InterfaceByName("kube-api")
		if err != nil {
			return err
		}
		all, err := link.Addrs()
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				found = p.Addr()
				return nil
			}
		}
		return errors.Join(err, errors.New("no IPv4 address on the link to the API server"))
	})
	return found, err
}
