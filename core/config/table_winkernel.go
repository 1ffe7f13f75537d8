package config

func windowsSettings() []Setting {
	return []Setting{
		{
			Path: "winkernel.networkName", Flag: "network-name", Counts: onWindows, Restart: restartRules,
			Doc:   "The HNS network of the pods. When empty it is found.",
			Value: func(c *Config) Value { return text(&c.Windows.NetworkName, nil) },
		},
		{
			Path: "winkernel.sourceVip", Flag: "source-vip", Counts: onWindows, Restart: restartRules,
			Doc:   "The source address of packets to endpoints on other nodes of an overlay network. When empty it is found.",
			Value: func(c *Config) Value { return text(&c.Windows.SourceVIP, checkIP) },
		},
		{
			Path: "winkernel.enableDSR", Flag: "enable-dsr", Counts: onWindows, Restart: restartRules,
			Doc:   "Answers go to the client directly, not through the load balancer (DSR).",
			Value: func(c *Config) Value { return boolean(&c.Windows.DSR) },
		},
		{
			Path: "winkernel.rootHnsEndpointName", Flag: "root-hnsendpoint-name", Counts: onWindows, Restart: restartRules,
			Doc:   "The HNS endpoint that stands for the machine on an l2bridge network.",
			Value: func(c *Config) Value { return text(&c.Windows.RootHNSEndpoint, nil) },
		},
		{
			Path: "winkernel.forwardHealthCheckVip", Flag: "forward-healthcheck-vip", Counts: onWindows, Restart: restartRules,
			Doc:   "Health checks that are sent to the address of a load balancer reach this machine.",
			Value: func(c *Config) Value { return boolean(&c.Windows.ForwardHealthCheckVIP) },
		},
		{
			Flag: "winkernel-source-ranges", BesideFile: true, Counts: onWindows, Restart: restartRules,
			Doc: "What becomes of load balancer IPs with loadBalancerSourceRanges, which HNS cannot enforce. enforce does not program them on this node; " +
				"trust programs them for everybody, for clouds whose load balancers filter clients themselves.",
			Value: func(c *Config) Value { return choice(&c.Windows.SourceRanges, EnforceRanges, TrustRanges) },
		},
		{
			Path: "windowsRunAsService", Flag: "windows-service", BesideFile: true, Restart: restartSystem,
			Doc:   "Run as a service of the Windows service manager. kube-proxy heeds the flag only; Tandem the field, too.",
			Value: func(c *Config) Value { return boolean(&c.Windows.Service) },
		},
	}
}
