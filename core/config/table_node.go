// SPDX-License-Identifier: Apache-2.0

package config

// AllowedExternalIPs is the flag by which external IPs are allowed: problems name
// it.
const AllowedExternalIPs = "allowed-external-ips"

func sourceSettings() []Setting {
	return []Setting{
		{
			Flag: "manifests", BesideFile: true, Restart: restartSource,
			Doc:   "Read Services, EndpointSlices and Nodes from a folder of manifests (YAML or JSON), from a single file, or from the standard input (-, read once), instead of an API server.",
			Value: func(c *Config) Value { return text(&c.Manifests, nil) },
		},
		{
			Flag: "service-node-port-range", BesideFile: true, Restart: restartSource,
			Doc: "The node ports, including those for health checks, that manifests may use, as with the API server's flag of that name. Other ports may be in use on this machine, " +
				"by sshd or the kubelet, and their connections must not reach a Service.",
			Value: func(c *Config) Value { return portRange(&c.NodePortRange) },
		},
		{
			Flag: "master", BesideFile: true, Restart: restartSource,
			Doc:   "URL of the API server; overrides that of the kubeconfig.",
			Value: func(c *Config) Value { return text(&c.API.Server, nil) },
		},
		{
			Path: "clientConnection.kubeconfig", Flag: "kubeconfig", Restart: restartSource,
			Doc:   "kubeconfig for the API server. Without it and --master the pod's service account is used.",
			Value: func(c *Config) Value { return text(&c.API.Kubeconfig, nil) },
		},
		{
			Path: "clientConnection.acceptContentTypes", Unused: "the client requests protobuf",
			Doc:   "Accept header of requests to the API server.",
			Value: unused("clientConnection.acceptContentTypes", Text, ""),
		},
		{
			Path: "clientConnection.contentType", Flag: "kube-api-content-type", Restart: restartSource,
			Doc:   "Content type of requests to the API server.",
			Value: func(c *Config) Value { return text(&c.API.ContentType, nil) },
		},
		{
			Path: "clientConnection.qps", Flag: "kube-api-qps", Restart: restartSource,
			Doc:   "Average requests per second to the API server. Watches do not count: changes arrive as they happen.",
			Value: func(c *Config) Value { return number(&c.API.QPS) },
		},
		{
			Path: "clientConnection.burst", Flag: "kube-api-burst", Restart: restartSource,
			Doc:   "Maximum burst of requests to the API server.",
			Value: func(c *Config) Value { return integer(&c.API.Burst, 0, maxInt) },
		},
		{
			Path: "configSyncPeriod", Flag: "config-sync-period", Restart: restartSource,
			Doc:   "kube-proxy's resync interval of informers. Tandem's watch does not resync.",
			Value: func(c *Config) Value { return period(&c.API.Resync) },
		},
	}
}

func nodeSettings() []Setting {
	return []Setting{
		{
			Path: "hostnameOverride", Flag: "hostname-override", BesideFile: true, Restart: restartNode,
			Doc:   "Name of this machine's Node; default is the host name.",
			Value: func(c *Config) Value { return hostName(c) },
		},
		{
			Path: "bindAddress", Flag: "bind-address",
			Doc: "Overrides the Node's primary address. Nothing is bound to it. " +
				"An IPv6 one moves the default addresses of the two servers to IPv6.",
			Value: nodeIP,
		},
		{
			Path: "detectLocalMode", Flag: "detect-local-mode",
			Doc:   "How packets of this node's pods are detected: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.",
			Value: func(c *Config) Value { return detectMode(&c.DetectLocal) },
		},
		{
			Path: "detectLocal.bridgeInterface", Flag: "pod-bridge-interface",
			Doc:   "Bridge of the pods, for BridgeInterface.",
			Value: func(c *Config) Value { return interfaceName(&c.PodBridge) },
		},
		{
			Path: "detectLocal.interfaceNamePrefix", Flag: "pod-interface-name-prefix",
			Doc:   "Name prefix of the pods' interfaces, for InterfaceNamePrefix.",
			Value: func(c *Config) Value { return interfaceName(&c.PodInterfacePrefix) },
		},
		{
			Path: "clusterCIDR", Flag: "cluster-cidr",
			Doc:   "CIDR of all pods, one or one of each family separated by a comma, for ClusterCIDR. Without one, pods are not detected.",
			Value: func(c *Config) Value { return prefixPair(&c.ClusterCIDRs) },
		},
		{
			Path: "nodePortAddresses", Flag: "nodeport-addresses",
			Doc: "The addresses of this machine on which node ports answer: ranges, and the words primary for those of the Node object, localhost for loopback addresses, and all. " +
				"An IP family without a range has all its addresses, unless primary or localhost is given. When empty: primary for the mode nftables, else all. " +
				"Loopback addresses answer only with localhost, a range of them such as 127.0.0.0/8, or iptables.localhostNodePorts, and of them 127.0.0.1 and ::1; " +
				"in the mode nftables to TCP only, as in kube-proxy.",
			Value: func(c *Config) Value { return nodePorts(&c.NodePorts) },
		},
		{
			Flag: AllowedExternalIPs, BesideFile: true,
			Doc: "Ranges of external and load balancer IPs that Services may have even if they are addresses of a node, of pods, of a ServiceCIDR, of other namespaces' load balancers or endpoints, " +
				"or of the API server's machine, except the address and port of the API server itself. " +
				"Others are rejected: such external IPs (CVE-2020-8554), and such load balancer IPs except this node's. " +
				"The word only, with ranges or alone, rejects all other external IPs.",
			Value: func(c *Config) Value { return externalIPs(&c.ExternalIPs) },
		},
		{
			Path: "featureGates", Flag: "feature-gates", Ignored: otherGates,
			Doc: "Feature gates of kube-proxy. Two have an effect: with " + GateIPVS + "=false the mode ipvs is an error, " +
				"and with " + GateLocalhost + "=false node ports do not answer on loopback addresses in the mode nftables. All others are accepted and ignored.",
			Value: func(c *Config) Value { return gates(&c.Gates) },
		},
		{
			Path: "portRange", Unused: "kube-proxy ignores it, too",
			Doc:   "Port range of kube-proxy's former userspace mode.",
			Value: unused("portRange", Text, ""),
		},
		{
			Flag: "boot-id-file", Unused: "nothing uses it",
			Doc:   "File with the boot ID; kube-proxy has the flag by accident.",
			Value: unused("--boot-id-file", Text, "/proc/sys/kernel/random/boot_id"),
		},
		{
			Flag: "machine-id-file", Unused: "nothing uses it",
			Doc:   "Files with the machine ID; kube-proxy has the flag by accident.",
			Value: unused("--machine-id-file", Text, "/etc/machine-id,/var/lib/dbus/machine-id"),
		},
	}
}

// detectMode reads the empty text as ClusterCIDR.
func detectMode(p *DetectLocal) Value {
	v := choice(p, DetectClusterCIDR, DetectNodeCIDR, DetectBridgeInterface, DetectInterfacePrefix)
	set := v.Set
	v.Set = func(words []string) error {
		err := set(words)
		if *p == "" {
			*p = DetectClusterCIDR
		}
		return err
	}
	return v
}
