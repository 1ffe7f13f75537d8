package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// iptablesMode has goals and peers of its own.
const iptablesMode = "iptables"

// contender is a proxy in one of its settings.
type contender struct {
	name    string
	ours    bool
	command func() (*exec.Cmd, error)
}

// contenders returns all that can run here; what cannot is told. Where Tandem
// runs in the iptables mode, kube-proxy does so, too, and in no other.
func (o options) contenders(kubeProxy, kubeconfig string) (all []contender, err error) {
	legacy, err := o.legacy()
	if err != nil {
		if o.mode == iptablesMode {
			return nil, fmt.Errorf("iptables mode: %w", err)
		}
		fmt.Printf("left out: kube-proxy iptables: %v\n", err)
	}
	all = append(all, contender{name: "Tandem " + o.mode, ours: true, command: func() (*exec.Cmd, error) {
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
			all = append(all, contender{name: name, command: func() (*exec.Cmd, error) {
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

// podCIDR is where clients are told to be pods.
const podCIDR = "10.244.0.0/16"

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
// lock of its own. The machine's own choice stays as it is.
func (o options) legacy() (env []string, err error) {
	multi, err := exec.LookPath("xtables-legacy-multi")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(o.dir, "iptables-legacy")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			if err := os.Symlink(multi, filepath.Join(dir, family+what)); err != nil {
				return nil, err
			}
		}
	}
	return []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "XTABLES_LOCKFILE=" + filepath.Join(dir, "lock")}, nil
}
