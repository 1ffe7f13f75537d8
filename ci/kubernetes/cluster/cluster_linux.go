// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// Server is where the API server is, as nodes see it.
const Server = "https://172.31.0.1:6443"

var address = netip.MustParseAddr("172.31.0.1")

// grace is how long a program of the control plane may take to end.
const grace = 10 * time.Second

// Options are the settings of a cluster.
type Options struct {
	Dir      string // for data, certificates and logs; of the cluster alone
	Binaries Binaries
	Audit    bool          // keep a log of all requests, see Audit
	Server   []string      // further arguments of kube-apiserver
	Ready    time.Duration // how long an API server may take to become ready; 0 is 90 s
}

// Cluster is a running control plane. Its methods are safe for concurrent use, except
// those that stop and start its programs, which are for one goroutine.
type Cluster struct {
	Options
	net    *lab.Net
	ca     *Authority
	etcd   *Process
	server apiServer
	spare  apiServer
	nodes  atomic.Uint32 // that have joined
	users  atomic.Uint32 // that have a kubeconfig
}

// Start starts a control plane and waits until it is ready. If it fails nothing is
// left running.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{Options: o}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if err := c.certificates(); err != nil {
		return err
	}
	if c.net, err = lab.New(ctx, lab.Plan{Node: []netip.Addr{address}}); err != nil {
		return err
	}
	etcd := exec.Command(c.Binaries.Etcd, etcdArgs(c.Dir)...)
	if c.etcd, err = Run(c.net, lab.Node, c.path("etcd.log"), etcd); err != nil {
		return err
	}
	return c.StartServer(ctx)
}

// certificates writes the files that the programs read.
func (c *Cluster) certificates() (err error) {
	if c.ca, err = NewAuthority(); err != nil {
		return err
	}
	server, err := c.ca.Server([]string{"kube-apiserver", "localhost", "kubernetes.default.svc"}, address, netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		return err
	}
	var accounts *ecdsa.PrivateKey
	if accounts, err = NewKey(); err != nil {
		return err
	}
	signing, err := EncodeKey(accounts)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"ca.crt": c.ca.PEM, "server.crt": server.Cert, "server.key": server.Key,
		"accounts.key": signing, "audit.yaml": []byte(auditPolicy),
	} {
		if err := os.WriteFile(c.path(name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

// StartServer starts the API server and waits until it is ready.
func (c *Cluster) StartServer(ctx context.Context) (err error) {
	c.server, err = c.launch(ctx, "6443")
	return err
}

// KillServer ends the API server as kill -9 does.
func (c *Cluster) KillServer() { c.server.Kill() }

// ServerPID returns the number of the API server's process.
func (c *Cluster) ServerPID() int { return c.server.PID() }

// Client is an administrator's, without a limit of its own.
func (c *Cluster) Client() kubernetes.Interface { return c.server.client }

// Dynamic returns an administrator's client for objects of any kind.
func (c *Cluster) Dynamic() (dynamic.Interface, error) {
	config, err := c.Config("admin", "system:masters")
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfig(config)
}

// Spare returns an administrator's client of a second API server of the same cluster,
// which no node uses: objects can change while the first one is down.
func (c *Cluster) Spare(ctx context.Context) (_ kubernetes.Interface, err error) {
	if c.spare.Process == nil {
		c.spare, err = c.launch(ctx, "6444")
	}
	return c.spare.client, err
}

// Config is how this process talks to the API server as some user.
func (c *Cluster) Config(user string, groups ...string) (*rest.Config, error) {
	p, err := c.ca.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: Server, Dial: c.dial, QPS: -1,
		ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.PEM, CertData: p.Cert, KeyData: p.Key},
	}, nil
}

// Kubeconfig writes a kubeconfig for a user with a client certificate and
// returns its path. It is for programs on nodes.
func (c *Cluster) Kubeconfig(user string, groups ...string) (path string, err error) {
	p, err := c.ca.Client(user, groups...)
	if err != nil {
		return "", err
	}
	return c.kubeconfig(api.AuthInfo{ClientCertificateData: p.Cert, ClientKeyData: p.Key})
}

// TokenKubeconfig is Kubeconfig for a user whose token is in a file.
func (c *Cluster) TokenKubeconfig(file string) (path string, err error) {
	return c.kubeconfig(api.AuthInfo{TokenFile: file})
}

func (c *Cluster) kubeconfig(user api.AuthInfo) (path string, err error) {
	path = c.path(fmt.Sprintf("user-%d.kubeconfig", c.users.Add(1)))
	return path, WriteKubeconfig(path, Server, c.ca.PEM, user)
}

// dial makes a connection from within the control plane's namespace.
func (c *Cluster) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = c.net.Do(lab.Node, func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Close ends everything. The folder stays.
func (c *Cluster) Close() error {
	var errs []error
	for _, p := range []*Process{c.server.Process, c.spare.Process, c.etcd} {
		if p != nil {
			errs = append(errs, p.Stop(grace))
		}
	}
	if c.net != nil {
		errs = append(errs, c.net.Close())
	}
	return errors.Join(errs...)
}
