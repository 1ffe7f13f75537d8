package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/platform"
)

// configFlags are the flags of the verbs that serve or plan Services. Where
// kube-proxy has the flag they have its name.
type configFlags struct {
	config.Config
	mode, detect string
	clusterCIDRs []string
	nodePorts    []string
}

func (f *configFlags) register(fs *pflag.FlagSet) {
	f.Config = config.Default()
	c := &f.Config
	fs.StringVar(&c.Manifests, "manifests", "", "folder of Service, EndpointSlice and Node manifests (YAML or JSON) to serve")
	fs.StringVar(&c.NodeName, "hostname-override", "", "name of the Node that is this machine (default: the host name)")
	fs.StringVar(&f.mode, "proxy-mode", string(c.Mode), "how Services are implemented: "+strings.Join(platform.Names(), " or "))
	fs.StringVar(&f.detect, "detect-local-mode", string(c.DetectLocal), "how this node's pods are told from others: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	fs.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil, "the pods' address ranges, one a family, for ClusterCIDR; without one no pods are known")
	fs.StringVar(&c.PodBridge, "pod-bridge-interface", "", "the bridge that pods are attached to, for BridgeInterface")
	fs.StringVar(&c.PodInterfacePrefix, "pod-interface-name-prefix", "", "start of the names of the pods' interfaces, for InterfaceNamePrefix")
	fs.StringSliceVar(&f.nodePorts, "nodeport-addresses", nil, "address ranges on which node ports answer, or primary (default: all for auto, primary for nftables)")
	fs.BoolVar(&c.MasqueradeAll, "masquerade-all", false, "SNAT all traffic to cluster IPs")
	fs.IntVar(&c.MasqueradeBit, "iptables-masquerade-bit", c.MasqueradeBit, "bit of the packet mark that asks for SNAT")
	fs.DurationVar(&c.AuditPeriod, "audit-period", c.AuditPeriod, "how often the data plane is read back and compared though nothing is suspicious")
	fs.DurationVar(&c.MinSyncPeriod, "min-sync-period", 0, "least time between two changes of the data plane (default: none)")
	fs.StringVar(&c.HTTPAddress, "metrics-bind-address", c.HTTPAddress, "where /metrics, /healthz and /status are served; empty for nowhere")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "node" { // the short form
			name = "hostname-override"
		}
		return pflag.NormalizedName(name)
	})
}

// config returns the configuration that the flags make, or all that is wrong
// with them.
func (f *configFlags) config() (*config.Config, error) {
	c := &f.Config
	c.Mode, c.DetectLocal = config.Mode(f.mode), config.DetectLocal(f.detect)
	var wrong []string
	prefixes := func(flag string, words []string) (ps []netip.Prefix) {
		for _, w := range words {
			p, err := netip.ParsePrefix(strings.TrimSpace(w))
			if err != nil {
				wrong = append(wrong, fmt.Sprintf("--%s: %q is not a CIDR such as 10.0.0.0/8", flag, w))
				continue
			}
			ps = append(ps, p)
		}
		return ps
	}
	c.ClusterCIDRs = prefixes("cluster-cidr", f.clusterCIDRs)
	if len(f.nodePorts) > 0 && f.nodePorts[0] == "primary" {
		c.NodePorts.Primary, f.nodePorts = true, f.nodePorts[1:]
	}
	c.NodePorts.Prefixes = prefixes("nodeport-addresses", f.nodePorts)
	if c.Manifests == "" {
		wrong = append(wrong, "--manifests: name a folder of manifests")
	}
	if c.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("--hostname-override: must be set, the host name cannot be read: %v", err))
		}
		c.NodeName = strings.ToLower(strings.TrimSpace(name)) // as kubelet does
	}
	if _, err := platform.Find(c.Mode); err != nil {
		wrong = append(wrong, fmt.Sprintf("--proxy-mode: %v", err))
	}
	if err := c.Validate(); err != nil {
		wrong = append(wrong, err.Error())
	}
	if len(wrong) > 0 {
		return nil, usageError{fmt.Errorf("%s", strings.Join(wrong, "\n"))}
	}
	c.Complete()
	return c, nil
}
