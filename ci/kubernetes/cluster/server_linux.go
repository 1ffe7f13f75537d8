// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// startTime is how long the API server may take to become ready on a busy machine
// (Options.Ready).
const startTime = 90 * time.Second

// ErrEnded means that an API server ended before it was ready, as it does by itself when its
// own first requests take too long (exit 255): what runs it starts it again.
var ErrEnded = errors.New("kube-apiserver ended")

func etcdArgs(dir string) []string {
	return []string{
		"--data-dir=" + dir + "/etcd",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--unsafe-no-fsync", // the data need not survive a crash
		"--log-level=warn",
	}
}

// serverArgs are the arguments for the scenarios: their address ranges, no limits,
// and no controller that writes endpoints.
func (c *Cluster) serverArgs(port string) []string {
	args := []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0", "--secure-port=" + port, "--advertise-address=" + address.String(),
		"--cert-dir=" + c.Dir,
		"--tls-cert-file=" + c.path("server.crt"), "--tls-private-key-file=" + c.path("server.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("accounts.key"),
		"--service-account-signing-key-file=" + c.path("accounts.key"),
		"--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
		"--endpoint-reconciler-type=none",
		"--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0",
		"--profiling=false",
		"--allow-privileged=true", // as kubeadm does: proxies set kernel parameters
	}
	if c.Audit {
		args = append(args, "--audit-policy-file="+c.path("audit.yaml"), "--audit-log-path="+c.path("audit.log"), "--audit-log-mode=blocking")
	}
	return append(args, c.Server...)
}

// apiServer is one kube-apiserver. A cluster may have two, on one etcd.
type apiServer struct {
	*Process
	client kubernetes.Interface // an administrator's
}

// launch starts an API server and waits until it is ready.
func (c *Cluster) launch(ctx context.Context, port string) (s apiServer, err error) {
	admin, err := c.Config("admin", "system:masters")
	if err != nil {
		return s, err
	}
	admin.Host = "https://" + net.JoinHostPort(address.String(), port)
	if s.client, err = kubernetes.NewForConfig(admin); err != nil {
		return s, err
	}
	cmd := exec.Command(c.Binaries.APIServer, c.serverArgs(port)...)
	if s.Process, err = Run(c.net, lab.Node, c.path("kube-apiserver-"+port+".log"), cmd); err != nil {
		return s, err
	}
	if err := s.ready(ctx, c.etcd, cmp.Or(c.Ready, startTime)); err != nil {
		s.Kill()
		return s, err
	}
	return s, nil
}

// ready waits until the server reports ready.
func (s apiServer) ready(ctx context.Context, etcd *Process, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := s.ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.Done():
			return fmt.Errorf("%w: %w:\n%s", ErrEnded, s.err, s.Said(10))
		case <-etcd.Done():
			return fmt.Errorf("etcd ended: %w:\n%s", etcd.err, etcd.Said(10))
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready: %w:\n%s", err, s.Said(10))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ask returns nil if the server is ready and has the default objects of a cluster.
func (s apiServer) ask(ctx context.Context) error {
	if err := s.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return err
	}
	if _, err := s.client.RbacV1().ClusterRoleBindings().Get(ctx, "system:node-proxier", metav1.GetOptions{}); err != nil {
		return err
	}
	_, err := s.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
	return err
}
