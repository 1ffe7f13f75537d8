package config

func modeSettings() []Setting {
	return []Setting{
		{
			Path: "mode", Flag: "proxy-mode", Empty: string(Auto), Restart: restartMode,
			Doc: "How Services are implemented. auto takes the best mode that works on the machine: on Linux nftables, else iptables, else userspace; on Windows kernelspace. " +
				"In a file auto is written as the empty text, which means iptables to kube-proxy. " +
				"A mode that is named keeps kube-proxy's defaults for it; with auto the section iptables counts, as it does for kube-proxy when no mode is named.",
			Value: func(c *Config) Value { return proxyMode(&c.Mode) },
		},
		{
			Flag: "proxy-mode-strict", BesideFile: true, Restart: restartStart,
			Doc:   "A mode that is named and does not work on this machine is an error. Otherwise some modes have one to fall back to.",
			Value: func(c *Config) Value { return boolean(&c.Strict) },
		},
		{
			Flag: "takeover", BesideFile: true, Restart: restartStart,
			Doc:   "Remove what kube-proxy has left on this machine, once Tandem's own rules are in place. Stop kube-proxy first.",
			Value: func(c *Config) Value { return boolean(&c.TakeOver) },
		},
		{
			Flag: "audit-period", BesideFile: true,
			Doc:   "How often the data plane is read back and compared though nothing points to a foreign hand in it.",
			Value: func(c *Config) Value { return period(&c.AuditPeriod) },
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
	docBit     = "The bit of the packet mark by which packets that need SNAT are told, 0 to 31. Other users of marks on the machine must leave it alone."
	docAll     = "SNAT everything that is sent to cluster IPs. Some networks of pods need it."
	docSync    = "kube-proxy's interval of periodic work. Tandem needs none; a change that could not be programmed for twice as long makes /healthz fail."
	docMinSync = "The least time between two changes of the data plane; 0 programs each at once. kube-proxy waits for a second unless told otherwise, Tandem only when told."
)

func iptablesSettings() []Setting {
	return []Setting{
		{
			Path: "iptables.masqueradeBit", Flag: "iptables-masquerade-bit", ZeroCounts: true, Counts: notNFTables, Restart: restartRules,
			Doc:   docBit + " For every mode but nftables; the flag is for all.",
			Value: func(c *Config) Value { return integer(&c.MasqueradeBit, 0, 31) },
		},
		{
			Path: "iptables.masqueradeAll", Flag: "masquerade-all", Counts: notNFTables,
			Doc:   docAll + " For every mode but nftables; the flag is for all.",
			Value: func(c *Config) Value { return boolean(&c.MasqueradeAll) },
		},
		{
			Path: "iptables.localhostNodePorts", Flag: "iptables-localhost-nodeports", ZeroCounts: true, Counts: onNodePorts, Restart: restartSystem,
			Doc: "Node ports answer on 127.0.0.1 as well, in the modes that can, for IPv4. It needs route_localnet, which opens services on 127.0.0.1 to neighbours unless they are kept out (CVE-2020-8558). " +
				"kube-proxy's default for iptables is true.",
			Value: func(c *Config) Value { return boolean(&c.NodePorts.Loopback) },
		},
		{
			Path: "iptables.syncPeriod", Flag: "iptables-sync-period", Counts: inOthers,
			Doc:   docSync + " For every mode without a section of its own.",
			Value: func(c *Config) Value { return period(&c.SyncPeriod) },
		},
		{
			Path: "iptables.minSyncPeriod", Flag: "iptables-min-sync-period", Counts: inOthers,
			Doc:   docMinSync + " For every mode without a section of its own.",
			Value: func(c *Config) Value { return duration(&c.MinSyncPeriod) },
		},
	}
}

func nftablesSettings() []Setting {
	return []Setting{
		{
			Path: "nftables.masqueradeBit", Flag: "iptables-masquerade-bit", ZeroCounts: true, Counts: inNFTables, Restart: restartRules,
			Doc:   docBit + " For the mode nftables.",
			Value: func(c *Config) Value { return integer(&c.MasqueradeBit, 0, 31) },
		},
		{
			Path: "nftables.masqueradeAll", Flag: "masquerade-all", Counts: inNFTables,
			Doc:   docAll + " For the mode nftables.",
			Value: func(c *Config) Value { return boolean(&c.MasqueradeAll) },
		},
		{
			Path: "nftables.syncPeriod", Flag: "iptables-sync-period", Counts: inNFTables,
			Doc:   docSync + " For the mode nftables.",
			Value: func(c *Config) Value { return period(&c.SyncPeriod) },
		},
		{
			Path: "nftables.minSyncPeriod", Flag: "iptables-min-sync-period", Counts: inNFTables,
			Doc:   docMinSync + " For the mode nftables.",
			Value: func(c *Config) Value { return duration(&c.MinSyncPeriod) },
		},
	}
}

func ipvsSettings() []Setting {
	all := []Setting{
		{
			Path: "ipvs.syncPeriod", Flag: "ipvs-sync-period",
			Doc:   docSync + " For the mode ipvs.",
			Value: func(c *Config) Value { return period(&c.SyncPeriod) },
		},
		{
			Path: "ipvs.minSyncPeriod", Flag: "ipvs-min-sync-period",
			Doc:   docMinSync + " For the mode ipvs.",
			Value: func(c *Config) Value { return duration(&c.MinSyncPeriod) },
		},
		{
			Path: "ipvs.scheduler", Flag: "ipvs-scheduler", Restart: restartRules,
			Doc:   "The scheduler of virtual servers: rr (when empty), lc, dh, sh, sed, nq, wrr, wlc, mh or any other that the kernel has.",
			Value: func(c *Config) Value { return text(&c.IPVS.Scheduler, nil) },
		},
		{
			Path: "ipvs.excludeCIDRs", Flag: "ipvs-exclude-cidrs", Restart: restartRules,
			Doc:   "Virtual servers with an address inside are never touched.",
			Value: func(c *Config) Value { return prefixes(&c.IPVS.ExcludeCIDRs) },
		},
		{
			Path: "ipvs.strictARP", Flag: "ipvs-strict-arp", Restart: restartSystem,
			Doc:   "Answer ARP for the addresses of Services on no interface (arp_ignore 1, arp_announce 2). Load balancers that announce them, such as MetalLB, need it.",
			Value: func(c *Config) Value { return boolean(&c.IPVS.StrictARP) },
		},
		{
			Path: "ipvs.tcpTimeout", Flag: "ipvs-tcp-timeout", Restart: restartSystem,
			Doc:   "How long IPVS keeps an idle TCP connection; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.IPVS.TCPTimeout) },
		},
		{
			Path: "ipvs.tcpFinTimeout", Flag: "ipvs-tcpfin-timeout", Restart: restartSystem,
			Doc:   "How long IPVS keeps a TCP connection after a FIN; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.IPVS.TCPFinTimeout) },
		},
		{
			Path: "ipvs.udpTimeout", Flag: "ipvs-udp-timeout", Restart: restartSystem,
			Doc:   "How long IPVS keeps an idle UDP flow; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.IPVS.UDPTimeout) },
		},
	}
	for i := range all {
		all[i].Counts = inIPVS
	}
	return all
}
