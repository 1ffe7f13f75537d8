package cluster

import (
	"context"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startTime is how long the API server may take to become ready, on a machine
// that has other things to do, too.
const startTime = 90 * time.Second

func etcdArgs(dir string) []string {
	return []string{
		"--data-dir=" + dir + "/etcd",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--unsafe-no-fsync", // what is here need not survive the machine
		"--log-level=warn",
	}
}

// serverArgs make a server that the scenarios fit into: the address ranges are
// theirs, nothing is limited, and nobody but the caller writes endpoints.
func (c *Cluster) serverArgs() []string {
	args := []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0", "--secure-port=6443", "--advertise-address=" + address.String(),
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
	}
	if c.Audit {
		args = append(args, "--audit-policy-file="+c.path("audit.yaml"), "--audit-log-path="+c.path("audit.log"), "--audit-log-mode=blocking")
	}
	return args
}

// ready waits until the server says so, and the roles are there that every
// cluster begins with.
func (c *Cluster) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		err := c.ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.server.Done():
			return fmt.Errorf("kube-apiserver ended: %w:\n%s", c.server.err, c.server.Said(10))
		case <-c.etcd.Done():
			return fmt.Errorf("etcd ended: %w:\n%s", c.etcd.err, c.etcd.Said(10))
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready: %w:\n%s", err, c.server.Said(10))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *Cluster) ask(ctx context.Context) error {
	var code int
	if err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code).Error(); err != nil {
		return err
	}
	if code != http.StatusOK {
		return fmt.Errorf("/readyz: %d", code)
	}
	_, err := c.client.RbacV1().ClusterRoleBindings().Get(ctx, "system:node-proxier", metav1.GetOptions{})
	if err == nil {
		_, err = c.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("not all of the beginning is there: %w", err)
	}
	return err
}
