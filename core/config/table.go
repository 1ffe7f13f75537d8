// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/printable"
)

func modeSettings() []Setting {
	return []Setting{
		{
			Path: "mode", Flag: "proxy-mode", Empty: string(Auto), Restart: restartMode,
			Doc: "The proxy mode. auto uses the first that works on this machine: on Linux nftables, iptables, userspace; on Windows kernelspace, userspace. " +
				"In a file auto is written as the empty text, which means iptables to kube-proxy. " +
				"Naming a mode uses kube-proxy's defaults for that mode; auto uses those of the section iptables, as kube-proxy does when no mode is set.",
			Value: func(c *Config) Value { return proxyMode(&c.Mode) },
		},
		{
			Flag: "proxy-mode-strict", BesideFile: true, Restart: restartStart,
			Doc:   "Fail if the configured mode does not work on this machine, instead of falling back to another.",
			Value: func(c *Config) Value { return boolean(&c.Strict) },
		},
		{
			Flag: "takeover", BesideFile: true, Restart: restartStart,
			Doc:   "Remove kube-proxy's rules once Tandem's own are in place (Linux). Stop kube-proxy first.",
			Value: func(c *Config) Value { return boolean(&c.TakeOver) },
		},
		{
			Flag: "endpoint-failover", BesideFile: true, Restart: restartStart,
			Doc: "What to do when a ready endpoint on another node stops answering: auto and on give it no new connections, on an idle machine after 0.6 to 0.8 s, until it answers again; observe only reports it; " +
				"off disables it. Modes without detection (kernelspace) do nothing; with on they report it.",
			Value: func(c *Config) Value {
				return choice(&c.Failover, FailoverAuto, FailoverOff, FailoverObserve, FailoverOn)
			},
		},
		{
			Flag: "audit-period", BesideFile: true,
			Doc:   "Full audit interval: how often the data plane is read back and compared without a sign of external changes.",
			Value: func(c *Config) Value { return period(&c.AuditPeriod) },
		},
		{
			Flag: "accelerate", BesideFile: true, Restart: restartRules, Counts: func(m Mode) bool { return m == NFTables || m == Auto },
			Doc: "Offload established connections to Services: flowtable, an nftables flowtable that bypasses the usual forwarding, in mode nftables. " +
				"Other programs' rules in the forward and postrouting hooks (network policies, QoS, accounting) see only the first packets of such connections then.",
			Value: func(c *Config) Value { return choice(&c.Accelerate, NoAcceleration, Flowtable) },
		},
		{
			Flag: "gateway-routes", BesideFile: true, Restart: restartStart,
			Doc: "Distribute connections to a Service over the weighted backends of TCPRoutes and UDPRoutes (Gateway API) that have the Service as parentRef. " +
				"From the API server, if it serves these kinds; routes in a folder of manifests always apply.",
			Value: func(c *Config) Value { return boolean(&c.GatewayRoutes) },
		},
		{
			Flag: "count-connections", BesideFile: true, Restart: restartStart,
			Doc:   "Count new connections of each Service in mode nftables, for tandem top. Costs kernel memory: 16 bytes a CPU for each frontend, and at most 20 MB; frontends beyond that are not counted.",
			Value: func(c *Config) Value { return boolean(&c.CountConnections) },
		},
		{
			Flag: "metrics-services", BesideFile: true, Restart: restartStart,
			Doc:   "How many Services have a metric of their new connections, tandem_service_connections_total, where the mode counts them; 0 for none. The busiest at the first scrape come first.",
			Value: func(c *Config) Value { return integer(&c.MetricsServices, 0, 10000) },
		},
		{
			Flag: "count-endpoints", BesideFile: true, Restart: restartStart,
			Doc:   "With --count-connections: count new connections of each endpoint as well, for tandem top --endpoints. Their counters are within the same 20 MB.",
			Value: func(c *Config) Value { return boolean(&c.CountEndpoints) },
		},
	}
}

// proxyMode reads the empty text as auto.
func proxyMode(p *Mode) Value {
	return scalar(Text, p, func(s string) (Mode, error) {
		if s == "" {
			return Auto, nil
		}
		return Mode(s), nil
	}, func(m Mode) string { return string(m) })
}

const (
	docBit     = "fwmark bit marking packets for SNAT, 0 to 31. No other software on the machine may use it."
	docAll     = "SNAT all traffic to cluster IPs. Some pod networks need it."
	docSync    = "kube-proxy's full sync interval. Tandem has no such sync: /healthz fails when a change is not programmed within twice this time."
	docMinSync = "Minimum time between two syncs; 0, the default, programs each change at once. kube-proxy's default is 1s"
)

func iptablesSettings() []Setting {
	return []Setting{
		{
			Path: "iptables.masqueradeBit", Flag: "iptables-masquerade-bit", ZeroCounts: true, Counts: notNFTables, Restart: restartRules,
			Doc:   docBit + " The field applies to every mode but nftables, the flag to all.",
			Value: func(c *Config) Value { return integer(&c.MasqueradeBit, 0, 31) },
		},
		{
			Path: "iptables.masqueradeAll", Flag: "masquerade-all", Counts: notNFTables,
			Doc:   docAll + " The field applies to every mode but nftables, the flag to all.",
			Value: func(c *Config) Value { return boolean(&c.MasqueradeAll) },
		},
		{
			Path: "iptables.localhostNodePorts", Flag: "iptables-localhost-nodeports", ZeroCounts: true, Counts: onNodePorts, Restart: restartSystem,
			Doc: "Serve node ports on loopback addresses, too: on 127.0.0.1 and ::1, by relays in this process. " +
				"The kernel parameter route_localnet, which kube-proxy sets for this and which lets neighbours reach the node's services on 127.0.0.1 (CVE-2020-8558), is not changed. " +
				"--nodeport-addresses=localhost,primary serves them on loopback addresses and the Node's own, in every mode. " +
				"When not set: true for the mode iptables, false for all others.",
			Value: func(c *Config) Value { return optional(&c.NodePorts.Loopback, boolean) },
		},
		{
			Path: "iptables.syncPeriod", Flag: "iptables-sync-period", Counts: inOthers,
			Doc:   docSync + " For modes without a section of their own.",
			Value: func(c *Config) Value { return period(&c.SyncPeriod) },
		},
		{
			Path: "iptables.minSyncPeriod", Flag: "iptables-min-sync-period", Counts: inOthers,
			Doc:   docMinSync + ". For modes without a section of their own.",
			Value: func(c *Config) Value { return duration(&c.MinSyncPeriod) },
		},
	}
}

func nftablesSettings() []Setting {
	return []Setting{
		{
			Path: "nftables.masqueradeBit", Flag: "iptables-masquerade-bit", ZeroCounts: true, Counts: inNFTables, Restart: restartRules,
			Doc:   docBit + " For mode nftables.",
			Value: func(c *Config) Value { return integer(&c.MasqueradeBit, 0, 31) },
		},
		{
			Path: "nftables.masqueradeAll", Flag: "masquerade-all", Counts: inNFTables,
			Doc:   docAll + " For mode nftables.",
			Value: func(c *Config) Value { return boolean(&c.MasqueradeAll) },
		},
		{
			Path: "nftables.syncPeriod", Flag: "iptables-sync-period", Counts: inNFTables,
			Doc:   docSync + " For mode nftables.",
			Value: func(c *Config) Value { return period(&c.SyncPeriod) },
		},
		{
			Path: "nftables.minSyncPeriod", Flag: "iptables-min-sync-period", Counts: inNFTables,
			Doc:   docMinSync + ". For mode nftables.",
			Value: func(c *Config) Value { return duration(&c.MinSyncPeriod) },
		},
	}
}

func ipvsSettings() []Setting {
	all := []Setting{
		{
			Path: "ipvs.syncPeriod", Flag: "ipvs-sync-period",
			Doc:   docSync + " For mode ipvs.",
			Value: func(c *Config) Value { return period(&c.SyncPeriod) },
		},
		{
			Path: "ipvs.minSyncPeriod", Flag: "ipvs-min-sync-period",
			Doc:   docMinSync + " for the flag, and 0 for the field. For mode ipvs.",
			Value: func(c *Config) Value { return duration(&c.MinSyncPeriod) },
		},
		{
			Path: "ipvs.scheduler", Flag: "ipvs-scheduler", Restart: restartRules, Remark: otherScheduler,
			Doc:   "IPVS scheduler: rr (default), lc, dh, sh, sed, nq, wrr, wlc, mh or any other of the kernel.",
			Value: func(c *Config) Value { return text(&c.IPVS.Scheduler, nil) },
		},
		{
			Path: "ipvs.excludeCIDRs", Flag: "ipvs-exclude-cidrs", Restart: restartRules,
			Doc:   "IPVS virtual servers with an address in these ranges are never changed.",
			Value: func(c *Config) Value { return prefixes(&c.IPVS.ExcludeCIDRs) },
		},
		{
			Path: "ipvs.strictARP", Flag: "ipvs-strict-arp", Restart: restartSystem,
			Doc:   "Do not answer ARP for Service addresses (arp_ignore 1, arp_announce 2). Needed by load balancers that announce them, such as MetalLB.",
			Value: func(c *Config) Value { return boolean(&c.IPVS.StrictARP) },
		},
		{
			Path: "ipvs.tcpTimeout", Flag: "ipvs-tcp-timeout", Restart: restartSystem,
			Doc:   "IPVS timeout of idle TCP connections; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.IPVS.TCPTimeout) },
		},
		{
			Path: "ipvs.tcpFinTimeout", Flag: "ipvs-tcpfin-timeout", Restart: restartSystem,
			Doc:   "IPVS timeout of TCP connections after a FIN; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.IPVS.TCPFinTimeout) },
		},
		{
			Path: "ipvs.udpTimeout", Flag: "ipvs-udp-timeout", Restart: restartSystem,
			Doc:   "IPVS timeout of idle UDP flows; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.IPVS.UDPTimeout) },
		},
	}
	for i := range all {
		all[i].Counts = inIPVS
	}
	return all
}

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
				"An IPv6 address moves the default health and metrics addresses to IPv6.",
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
			Doc: "The addresses of this machine on which node ports answer: CIDRs, or the words primary (addresses of the Node object), localhost (loopback addresses) and all. " +
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
			Path: "featureGates", Flag: "feature-gates", Remark: otherGates,
			Doc: "Feature gates of kube-proxy. Two have an effect: with " + GateIPVS + "=false the mode ipvs is an error, " +
				"and with " + GateLocalhost + "=false node ports do not answer on loopback addresses in the mode nftables. All others are accepted and ignored.",
			Value: func(c *Config) Value { return words(Map, &c.Gates, checkGates) },
		},
		{
			Path: "portRange", Unused: "kube-proxy ignores it, too",
			Doc:   "Port range of kube-proxy's former userspace mode.",
			Value: unused("portRange", Text, ""),
		},
		{
			Flag: "boot-id-file", Unused: "nothing uses it",
			Doc:   "File with the boot ID; kube-proxy up to 1.36 has the flag by accident.",
			Value: unused("--boot-id-file", Text, "/proc/sys/kernel/random/boot_id"),
		},
		{
			Flag: "machine-id-file", Unused: "nothing uses it",
			Doc:   "Files with the machine ID; kube-proxy up to 1.36 has the flag by accident.",
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

func serverSettings() []Setting {
	return []Setting{
		{
			Path: "healthzBindAddress", Flag: "healthz-bind-address", Restart: restartBind,
			Doc:   "Address of /healthz and /livez for load balancers and the kubelet, IP:PORT. An empty flag disables them; an empty field is the default.",
			Value: func(c *Config) Value { return text(&c.HealthAddress, checkListener) },
		},
		{
			Flag: "healthz-port", Restart: restartBind, Deprecated: "use --healthz-bind-address",
			Doc:   "Port of --healthz-bind-address, where that has none; 0 disables the server.",
			Value: func(c *Config) Value { return portOnly(&c.HealthAddress) },
		},
		{
			Path: "metricsBindAddress", Flag: "metrics-bind-address", Restart: restartBind,
			Doc:   "Address of /metrics, /status and /configz, IP:PORT. An empty flag disables them; an empty field is the default.",
			Value: func(c *Config) Value { return text(&c.HTTPAddress, checkListener) },
		},
		{
			Flag: "metrics-port", Restart: restartBind, Deprecated: "use --metrics-bind-address",
			Doc:   "Port of --metrics-bind-address, where that has none; 0 disables the server.",
			Value: func(c *Config) Value { return portOnly(&c.HTTPAddress) },
		},
		{
			Path: "bindAddressHardFail", Flag: "bind-address-hard-fail", Restart: restartBind,
			Doc:   "Exit if one of these addresses cannot be bound, instead of retrying.",
			Value: func(c *Config) Value { return boolean(&c.BindHardFail) },
		},
		{
			Path: "enableProfiling", Flag: "profiling", Restart: restartBind,
			Doc:   "Serve /debug/pprof on the metrics address.",
			Value: func(c *Config) Value { return boolean(&c.Profiling) },
		},
		{
			Flag: "trace-endpoint", BesideFile: true, Restart: restartStart,
			Doc: "URL of an OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318, that gets a trace of each change: from the moment it was written until the first packet can meet it. " +
				"Empty sends none.",
			Value: func(c *Config) Value { return text(&c.TraceEndpoint, checkCollector) },
		},
		{
			Path: "showHiddenMetricsForVersion", Flag: "show-hidden-metrics-for-version", Unused: "no metrics are hidden",
			Doc:   "Version of kube-proxy whose hidden metrics are shown.",
			Value: unused("showHiddenMetricsForVersion", Text, ""),
		},
	}
}

func conntrackSettings() []Setting {
	return []Setting{
		{
			Path: "oomScoreAdj", Flag: "oom-score-adj", ZeroCounts: true,
			Doc: "oom_score_adj of the process, -1000 (never killed) to 1000.",
			Value: func(c *Config) Value {
				return optional(&c.OOMScoreAdj, func(p *int) Value { return integer(p, -1000, 1000) })
			},
		},
		{
			Path: "conntrack.maxPerCore", Flag: "conntrack-max-per-core", ZeroCounts: true,
			Doc:   "Conntrack entries per CPU (nf_conntrack_max). Raises the limit, never lowers it; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return integer(&c.Conntrack.MaxPerCore, 0, maxInt) },
		},
		{
			Path: "conntrack.min", Flag: "conntrack-min", ZeroCounts: true,
			Doc:   "Minimum of conntrack entries; ignored if maxPerCore is 0.",
			Value: func(c *Config) Value { return integer(&c.Conntrack.Min, 0, maxInt) },
		},
		{
			Path: "conntrack.tcpEstablishedTimeout", Flag: "conntrack-tcp-timeout-established", ZeroCounts: true,
			Doc:   "Timeout of idle TCP connections: in conntrack, where 0 keeps the kernel's, and of relays in userspace mode, where 0 is a day and a change needs a restart.",
			Value: func(c *Config) Value { return optional(&c.Conntrack.TCPEstablished, duration) },
		},
		{
			Path: "conntrack.tcpCloseWaitTimeout", Flag: "conntrack-tcp-timeout-close-wait", ZeroCounts: true,
			Doc:   "Timeout of TCP connections that one side has closed: in conntrack, where 0 keeps the kernel's, and of relays in userspace mode, where 0 is an hour and a change needs a restart.",
			Value: func(c *Config) Value { return optional(&c.Conntrack.TCPCloseWait, duration) },
		},
		{
			Path: "conntrack.tcpBeLiberal", Flag: "conntrack-tcp-be-liberal", Restart: restartRules,
			Doc:   "Treat TCP packets outside the window as valid (nf_conntrack_tcp_be_liberal).",
			Value: func(c *Config) Value { return boolean(&c.Conntrack.TCPBeLiberal) },
		},
		{
			Path: "conntrack.udpTimeout", Flag: "conntrack-udp-timeout",
			Doc:   "Conntrack timeout of UDP flows without a reply; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.Conntrack.UDP) },
		},
		{
			Path: "conntrack.udpStreamTimeout", Flag: "conntrack-udp-timeout-stream",
			Doc:   "Conntrack timeout of UDP flows with replies; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.Conntrack.UDPStream) },
		},
	}
}

func logSettings() []Setting {
	const whole = "each line is written at once, to one stream"
	all := []Setting{
		{
			Flag:  "log-level",
			Doc:   "Log level: debug, info, warn or error. -v above 0 makes the log more verbose.",
			Value: func(c *Config) Value { return choice(&c.LogLevel, "debug", "info", "warn", "error") },
		},
		{
			Path: "logging.format", Flag: "logging-format", Restart: restartLog,
			Doc:   "Log format: text, or json with one document per line.",
			Value: func(c *Config) Value { return choice(&c.Logging.Format, "text", "json") },
		},
		{
			Path: "logging.flushFrequency", Flag: "log-flush-frequency", Unused: whole,
			Doc:   "Flush interval of kube-proxy's log.",
			Value: unused("logging.flushFrequency", Interval, "5s"),
		},
		{
			Path: "logging.verbosity", Flag: "v",
			Doc:   "Log verbosity as in kube-proxy: 0, the default, adds nothing to the log level, 4 and above is debug, 6 and above logs requests to the API server.",
			Value: func(c *Config) Value { return integer(&c.Logging.Verbosity, 0, maxInt) },
		},
		{
			Path: "logging.vmodule", Flag: "vmodule", Joined: true,
			Doc:   "Verbosity per source file of Kubernetes' client, as pattern=N. Flags and file are combined, flags first.",
			Value: func(c *Config) Value { return words(Modules, &c.Logging.Modules, checkModules) },
		},
	}
	for _, format := range []string{"text", "json"} {
		split, buffer := "logging.options."+format+".splitStream", "logging.options."+format+".infoBufferSize"
		all = append(all, Setting{
			Path: split, Flag: "log-" + format + "-split-stream", Unused: whole,
			Doc:   "In kube-proxy: errors to stderr and the rest to stdout, for format " + format + ".",
			Value: unused(split, Bool, "false"),
		}, Setting{
			Path: buffer, Flag: "log-" + format + "-info-buffer-size", Unused: whole,
			Doc:   "In kube-proxy: buffer size of split log streams, for format " + format + ".",
			Value: unused(buffer, Quantity, "0"),
		})
	}
	for i := range all {
		all[i].BesideFile = true
	}
	return all
}

func checkIP(s string) error {
	if s == "" {
		return nil
	}
	if _, err := netip.ParseAddr(s); err != nil {
		return fmt.Errorf("%s is not an IP address", printable.Quoted(s))
	}
	return nil
}

func windowsSettings() []Setting {
	return []Setting{
		{
			Path: "winkernel.networkName", Flag: "network-name", Counts: onWindows, Restart: restartRules,
			Doc:   "HNS network of the pods; default is to detect it.",
			Value: func(c *Config) Value { return text(&c.Windows.NetworkName, nil) },
		},
		{
			Path: "winkernel.sourceVip", Flag: "source-vip", Counts: onWindows, Restart: restartRules,
			Doc:   "Source address of packets to endpoints on other nodes of an overlay network; default is to detect it.",
			Value: func(c *Config) Value { return text(&c.Windows.SourceVIP, checkIP) },
		},
		{
			Path: "winkernel.enableDSR", Flag: "enable-dsr", Counts: onWindows, Restart: restartRules,
			Doc:   "Direct server return: replies bypass the load balancer.",
			Value: func(c *Config) Value { return boolean(&c.Windows.DSR) },
		},
		{
			Path: "winkernel.rootHnsEndpointName", Flag: "root-hnsendpoint-name", Counts: onWindows, Restart: restartRules,
			Doc:   "HNS endpoint of the node on an l2bridge network.",
			Value: func(c *Config) Value { return text(&c.Windows.RootHNSEndpoint, nil) },
		},
		{
			Path: "winkernel.forwardHealthCheckVip", Flag: "forward-healthcheck-vip", Counts: onWindows, Restart: restartRules,
			Doc:   "Forward health checks sent to load balancer addresses to this node.",
			Value: func(c *Config) Value { return boolean(&c.Windows.ForwardHealthCheckVIP) },
		},
		{
			Flag: "winkernel-source-ranges", BesideFile: true, Counts: onWindows, Restart: restartRules,
			Doc: "Treatment of load balancer IPs with loadBalancerSourceRanges, which HNS cannot enforce. enforce does not program them on this node; " +
				"trust programs them for all clients, for clouds whose load balancers filter clients themselves.",
			Value: func(c *Config) Value { return choice(&c.Windows.SourceRanges, EnforceRanges, TrustRanges) },
		},
		{
			Flag: "winkernel-dynamic-ports", BesideFile: true, Counts: onWindows, Restart: restartRules,
			Doc: "Size of the node's dynamic TCP port range (netsh int ipv4 show dynamicport tcp), of which each HNS load balancer without DSR reserves 64 ports. " +
				"Namespaces share these, and an eighth is kept for the node and for cluster IPs.",
			Value: func(c *Config) Value { return integer(&c.Windows.DynamicPorts, 255, 64512) },
		},
		{
			Flag: "record-hns", BesideFile: true, Counts: onWindows, Restart: restartRules,
			Doc: "Record what mode kernelspace asks HNS and what it answers, with other names and addresses, in this file (at most 64 MiB), " +
				"which is replaced. Off when empty.",
			Value: func(c *Config) Value { return text(&c.Windows.Record, nil) },
		},
		{
			Path: "windowsRunAsService", Flag: "windows-service", BesideFile: true, Restart: restartSystem,
			Doc:   "Run as a Windows service. kube-proxy ignores the field; Tandem does not.",
			Value: func(c *Config) Value { return boolean(&c.Windows.Service) },
		},
	}
}

// Setting is one setting. The list of them, Settings, is the only
// place that knows a flag, a field or a default.
type Setting struct {
	Path string // of the field in a KubeProxyConfiguration, such as "iptables.masqueradeBit"; empty for none
	Flag string // without its dashes; empty for none. A flag that several settings have sets them all
	Doc  string // what it does, in sentences

	// Value is the setting's value in a Config.
	Value func(*Config) Value

	// Restart is why a running proxy cannot apply a change; empty when it
	// can.
	Restart string

	// Counts reports whether the setting is looked at in a mode; nil is always.
	// kube-proxy has the same setting for several modes in several sections.
	Counts func(Mode) bool

	// Remark returns what there is to say about words that are valid; empty for nothing. It may be nil.
	Remark func(words []string) string

	// Unused is why Tandem accepts the setting and ignores it; empty
	// for those that do something.
	Unused string

	// Deprecated is what replaces the setting; empty for all but a few. It is a
	// second way to set what another setting sets.
	Deprecated string

	// Joined means that the words of the flag are put before those of the file, and
	// do not replace them.
	Joined bool

	// BesideFile means that the flag is used although there is a file. kube-proxy
	// ignores most flags then.
	BesideFile bool

	// ZeroCounts means that 0, false and "" are values in a file, too. For most
	// fields they mean "not set": the default holds.
	ZeroCounts bool

	// Empty is the value that a file gives by an empty text, where that is the
	// word for it in files.
	Empty string
}

// Name returns the setting's name: its field, else its flag with the dashes.
func (s *Setting) Name() string {
	if s.Path != "" {
		return s.Path
	}
	return "--" + s.Flag
}

// Tried reports whether a running proxy applies a change where the new value
// works; otherwise it waits for a restart.
func (s *Setting) Tried() bool { return s.Restart == restartMode }

// Why a change needs a restart.
const (
	restartStart  = "used at startup only"
	restartMode   = "switching the mode failed"
	restartRules  = "installed rules contain it"
	restartSource = "the source of Services is opened at startup"
	restartBind   = "the address is bound at startup"
	restartNode   = "the Node is chosen at startup"
	restartLog    = "the log is opened at startup"
	restartSystem = "the system is configured at startup"
)

// Where settings are looked at. The section iptables is for every mode
// without one of its own, also for none, as in kube-proxy.
func inIPVS(m Mode) bool      { return m == ipvs }
func inNFTables(m Mode) bool  { return m == NFTables }
func notNFTables(m Mode) bool { return !inNFTables(m) }
func inOthers(m Mode) bool    { return !inNFTables(m) && !inIPVS(m) }
func onWindows(m Mode) bool   { return m == kernelspace || m == Auto }
func onNodePorts(m Mode) bool { return m == iptables || m == userspace || m == Auto }
