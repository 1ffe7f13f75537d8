// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/ecdsa"
	"embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"text/template"

	"k8s.io/client-go/tools/clientcmd/api"

	control "github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
)

// files are templates of configurations and manifests.
//
//go:embed files
var files embed.FS

// pauseImage holds the namespaces of pods; the version is the one that kubelet names.
const pauseImage = "registry.k8s.io/pause:3.10.2"

// render fills in a template of files.
func render(name string, values any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(files, "files/"+name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, values)
	return b.Bytes(), err
}

// configuration is what the machines of a cluster read, by the name of the file in configDir, but for the
// CNI plug-ins' files: kubeconfigs, certificates and settings.
type configuration struct {
	plan plan
	ca   *control.Authority
	dir  string
}

// write makes an authority and writes all files into a folder. The administrator's kubeconfig, whose
// server is an address of the host, goes to another file.
func (c configuration) write(admin string, port int) error {
	var err error
	if c.ca, err = control.NewAuthority(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	accounts, err := control.NewKey()
	if err != nil {
		return err
	}
	serverAddrs := append([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr(apiAddress), nth(serviceNets[1], 1)}, c.plan.Control.Addr...)
	serverNames := []string{"kube-apiserver", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	local := "https://127.0.0.1:6443"
	steps := []func() error{
		func() error { return c.authority(accounts) },
		func() error { return c.pair("apiserver")(c.ca.Server(serverNames, serverAddrs...)) },
		func() error { return c.pair("kubelet-client")(c.ca.Client("kube-apiserver", "system:masters")) },
		func() error { return c.pair("front-proxy")(c.ca.Client("front-proxy")) },
		func() error { return c.kubeconfig("controller-manager.conf", local, "system:kube-controller-manager") },
		func() error { return c.kubeconfig("scheduler.conf", local, "system:kube-scheduler") },
		func() error { return c.kubeconfig("admin.conf", local, "admin", "system:masters") },
		func() error { return c.file("audit.yaml", nil) },
		func() error { return c.file("containerd.toml", map[string]string{"Pause": pauseImage}) },
		func() error { return os.WriteFile(filepath.Join(c.dir, "resolv.conf"), nil, 0o644) },
		func() error { return c.layout() },
		func() error {
			return c.userFile(admin, fmt.Sprintf("https://127.0.0.1:%d", port), "admin", "system:masters")
		},
	}
	for _, n := range c.plan.Workers {
		steps = append(steps, func() error { return c.node(n) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (c configuration) authority(accounts *ecdsa.PrivateKey) error {
	signing, err := control.EncodeKey(accounts)
	if err != nil {
		return err
	}
	key, err := c.ca.Key()
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"ca.crt": c.ca.PEM, "ca.key": key, "accounts.key": signing} {
		if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// layout writes the plan, for programs in machines.
func (c configuration) layout() error {
	text, err := json.MarshalIndent(c.plan, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, "plan.json"), text, 0o644)
}

// node writes the files of a node.
func (c configuration) node(n node) error {
	server := fmt.Sprintf("https://%s:6443", c.plan.Control.Addr[0])
	if err := c.pair(n.Name)(c.ca.Server([]string{n.Name}, n.Addr...)); err != nil {
		return err
	}
	if err := c.kubeconfig(n.Name+".conf", server, "system:node:"+n.Name, "system:nodes"); err != nil {
		return err
	}
	text, err := render("kubelet.yaml", map[string]string{"Name": n.Name, "DNS": dnsAddress})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, n.Name+".yaml"), text, 0o644)
}

func (c configuration) file(name string, values any) error {
	text, err := render(name, values)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, name), text, 0o644)
}

// pair returns a function that writes a certificate and its key.
func (c configuration) pair(name string) func(control.Pair, error) error {
	return func(p control.Pair, err error) error {
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(c.dir, name+".crt"), p.Cert, 0o644); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(c.dir, name+".key"), p.Key, 0o600)
	}
}

func (c configuration) kubeconfig(name, server, user string, groups ...string) error {
	return c.userFile(filepath.Join(c.dir, name), server, user, groups...)
}

func (c configuration) userFile(path, server, user string, groups ...string) error {
	p, err := c.ca.Client(user, groups...)
	if err != nil {
		return err
	}
	return control.WriteKubeconfig(path, server, c.ca.PEM, api.AuthInfo{ClientCertificateData: p.Cert, ClientKeyData: p.Key})
}

// chartSettings are what a user sets for a mode. The label is that of kube-proxy's pods, by which
// upstream's tests find the proxy to restart.
func chartSettings(mode string) []string {
	set := []string{"linux.podLabels.k8s-app=kube-proxy"}
	if mode != "nftables" {
		set = append(set, "linux.iptables=true")
	}
	return set
}
