// SPDX-License-Identifier: Apache-2.0

package config

func modeSettings() []Setting {
	return []Setting{
		{
			Path: "mode", Flag: "proxy-mode", Empty: string(Auto), Restart: restartMode,
			Doc: "The proxy mode. auto uses the first that works on this machine: on Linux nftables, iptables, userspace; on Windows kernelspace, userspace. " +
				"In a file auto is written as the empty text, which means iptables to kube-proxy. " +
				"A mode that is named keeps kube-proxy's defaults for it; with auto the section iptables counts, as it does for kube-proxy when no mode is named.",
			Value: func(c *Config) Value { return proxyMode(&c.Mode) },
		},
		{
			Flag: "proxy-mode-strict", BesideFile: true, Restart: restartStart,
			Doc:   "Fail if the configured mode does not work on this machine, instead of falling back to another.",
			Value: func(c *Config) Value { return boolean(&c.Strict) },
		},
		{
			Flag: "takeover", BesideFile: true, Restart: restartStart,
			Doc:   "Remove kube-proxy's rules once Tandem's own are in place. Stop kube-proxy first.",
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
			Doc: "Share the connections of Services by TCPRoutes and UDPRoutes of the Gateway API that have them as parents (kind Service), by the weights of their backends. " +
				"From the API server, where it has these kinds; those in a folder of manifests always count.",
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
			Path: "ipvs.scheduler", Flag: "ipvs-scheduler", Restart: restartRules,
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
