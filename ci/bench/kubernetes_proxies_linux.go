// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// iptablesMode has goals and peers of its own.
const iptablesMode = "iptables"

// kubernetesProxy is a proxy in one of its settings.
type kubernetesProxy struct {
	name    string
	peer    bool
	command func() (*exec.Cmd, error)
}

// proxies returns those that can run here; the others are noted. Where Tandem runs
// in the iptables mode, kube-proxy does so, too, and in no other.
func (o options) proxies(kubeProxy, kubeconfig string, f *figures) (all []kubernetesProxy, err error) {
	legacy, err := o.legacy()
	if err != nil {
		if o.mode == iptablesMode {
			return nil, fmt.Errorf("iptables mode: %w", err)
		}
		f.Notes = append(f.Notes, fmt.Sprintf("kube-proxy's iptables mode is not measured: %v", err))
	}
	all = append(all, kubernetesProxy{name: "Tandem " + o.mode, command: func() (*exec.Cmd, error) {
		cmd := exec.Command(o.tandem, "run", "--kubeconfig="+kubeconfig, "--hostname-override="+nodeName,
			"--proxy-mode="+o.mode, "--cluster-cidr="+podCIDR)
		cmd.Env = append(os.Environ(), legacy...)
		return cmd, nil
	}})
	modes := []string{"nftables", "iptables"}
	if o.mode == iptablesMode {
		modes = modes[1:]
	}
	for _, mode := range modes {
		if mode == "iptables" && legacy == nil {
			continue
		}
		// The defaults of kube-proxy, and the least it takes: zero means the default.
		for _, gap := range []string{"1s", "1ms"} {
			name := "kube-proxy " + mode + " " + gap
			all = append(all, kubernetesProxy{name: name, peer: true, command: func() (*exec.Cmd, error) {
				file := filepath.Join(o.dir, mode+gap+".yaml")
				if err := os.WriteFile(file, fmt.Appendf(nil, kubeProxyConfig, kubeconfig, mode, nodeName, podCIDR, mode, gap), 0o600); err != nil {
					return nil, err
				}
				cmd := exec.Command(kubeProxy, "--config="+file)
				cmd.Env = append(os.Environ(), legacy...)
				return cmd, nil
			}})
		}
	}
	return all, nil
}

const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %s}
mode: %s
hostnameOverride: %s
clusterCIDR: %s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
%s: {minSyncPeriod: %s}
`

// legacy returns an environment in which iptables is the legacy one, with a
// lock of its own.
func (o options) legacy() (env []string, err error) {
	dir, err := variantLinks(o.dir, "legacy")
	if err != nil {
		return nil, err
	}
	return []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "XTABLES_LOCKFILE=" + filepath.Join(dir, "lock")}, nil
}
