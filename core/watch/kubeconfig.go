// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tandem-proxy/tandem/core/config"
)

// The files of a pod's service account.
const (
	accountToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	accountCA    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

// connection returns how the API server is reached: by the kubeconfig, else by the
// server's address alone, else as the pod that this is. It is kube-proxy's order.
func (p environment) connection(api config.API) (*rest.Config, error) {
	switch {
	case api.Kubeconfig != "":
		return p.kubeconfig(api.Kubeconfig, api.Server)
	case api.Server != "":
		return &rest.Config{Host: api.Server}, nil
	default:
		return p.pod()
	}
}

// kubeconfig reads a kubeconfig. A server overrides the one it names.
func (p environment) kubeconfig(name, server string) (*rest.Config, error) {
	wrong := func(err error, advice string) error {
		return fmt.Errorf("kubeconfig %s: %w; %s", name, err, advice)
	}
	file := p.path(name)
	kube, err := clientcmd.LoadFromFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, wrong(fs.ErrNotExist, "set --kubeconfig to its path, or leave it empty in a pod with a service account")
	case errors.Is(err, fs.ErrPermission):
		return nil, wrong(fs.ErrPermission, "make it readable for the user that runs tandem")
	case err != nil:
		return nil, wrong(err, "it must be YAML of kind Config, as printed by kubectl config view")
	}
	if err := p.complete(kube, server); err != nil {
		return nil, wrong(err, "see kubectl --kubeconfig FILE config view")
	}
	// A pod's paths have no drive letter; on Windows client-go takes those for
	// relative.
	for _, ref := range clientcmd.GetConfigFileReferences(kube) {
		if !strings.HasPrefix(*ref, "/") {
			continue
		}
		if *ref, err = filepath.Abs(p.path(*ref)); err != nil {
			return nil, wrong(err, "give absolute paths")
		}
	}
	// Relative paths count from the kubeconfig's folder.
	if err := clientcmd.ResolveLocalPaths(kube); err != nil {
		return nil, wrong(err, "give absolute paths")
	}
	for _, ref := range clientcmd.GetConfigFileReferences(kube) {
		*ref = p.path(*ref)
	}
	over := &clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: server}}
	c, err := clientcmd.NewDefaultClientConfig(*kube, over).ClientConfig()
	if err != nil {
		return nil, wrong(err, "correct that entry")
	}
	return c, nil
}

// complete checks that a kubeconfig's current context leads to a server, with clearer
// messages than client-go's.
func (p environment) complete(kube *clientcmdapi.Config, server string) error {
	if kube.CurrentContext == "" {
		return errors.New("no current-context")
	}
	c := kube.Contexts[kube.CurrentContext]
	if c == nil {
		return fmt.Errorf("current-context %q is not defined", kube.CurrentContext)
	}
	cluster := kube.Clusters[c.Cluster]
	if cluster == nil {
		return fmt.Errorf("context %q: cluster %q is not defined", kube.CurrentContext, c.Cluster)
	}
	if cluster.Server == "" && server == "" {
		return fmt.Errorf("cluster %q has no server", c.Cluster)
	}
	if c.AuthInfo != "" && kube.AuthInfos[c.AuthInfo] == nil {
		return fmt.Errorf("context %q: user %q is not defined", kube.CurrentContext, c.AuthInfo)
	}
	return nil
}

// pod connects with the service account of the pod that this is. The token file is
// re-read, since the kubelet renews it.
func (p environment) pod() (*rest.Config, error) {
	host, port := p.getenv("KUBERNETES_SERVICE_HOST"), p.getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("no API server: not running in a pod (KUBERNETES_SERVICE_HOST and _PORT are not set); " +
			"set --kubeconfig or --master, or a folder with --manifests")
	}
	token, ca := p.path(accountToken), p.path(accountCA)
	for _, file := range []string{token, ca} {
		if _, err := os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("service account of the pod: %w; set serviceAccountName and do not set automountServiceAccountToken to false, or set --kubeconfig", err)
		}
	}
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort(host, port),
		BearerTokenFile: token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: ca},
	}, nil
}

// environment is the file system and environment variables of this process.
type environment struct {
	getenv func(string) string
	exists func(string) bool

	connected func([]netip.AddrPort) // as in Hooks
	dial      Dialer                 // the same
}

// WorldWritable reports whether any user of this machine may write a file or folder. On
// Windows the mode of a file does not tell; it is false there.
func WorldWritable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0
}

func processEnvironment() environment {
	return environment{getenv: os.Getenv, exists: func(name string) bool {
		_, err := os.Stat(name)
		return !errors.Is(err, fs.ErrNotExist)
	}}
}

// sandboxEnv names the folder under which a Windows HostProcess container finds
// its volumes: containerd before 1.7 mounts them there, and not where the pod
// says (KEP-1981).
const sandboxEnv = "CONTAINER_SANDBOX_MOUNT_POINT"

// Path returns where a file that the pod names really is.
func Path(name string) string { return processEnvironment().path(name) }

// path returns where a file of the pod really is: at its own path, or else
// under the sandbox's mount point.
func (p environment) path(name string) string {
	root := p.getenv(sandboxEnv)
	if root == "" || name == "" || p.exists(name) {
		return name
	}
	inside := filepath.Join(root, strings.TrimPrefix(name, filepath.VolumeName(name)))
	if p.exists(inside) {
		return inside
	}
	return name
}
