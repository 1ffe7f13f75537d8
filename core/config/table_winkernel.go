// SPDX-License-Identifier: Apache-2.0

package config

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
			Path: "windowsRunAsService", Flag: "windows-service", BesideFile: true, Restart: restartSystem,
			Doc:   "Run as a Windows service. kube-proxy ignores the field; Tandem does not.",
			Value: func(c *Config) Value { return boolean(&c.Windows.Service) },
		},
	}
}
