// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// Parts of kube-proxy's defaults.
const (
	healthPort    = 10256
	metricsPort   = 10249
	syncPeriod    = 30 * time.Second
	masqueradeBit = 14
)

// Default returns the configuration that holds when nothing is set. It is
// kube-proxy's, with these differences: the mode is auto; a change is programmed
// at once (kube-proxy waits for a second by default); and node
// ports do not answer on 127.0.0.1 (with iptables.localhostNodePorts relays serve them there,
// without route_localnet, CVE-2020-8558).
func Default() Config {
	established, closeWait, oom := 24*time.Hour, time.Hour, -999
	return Config{
		Mode:          Auto,
		DetectLocal:   DetectClusterCIDR,
		MasqueradeBit: masqueradeBit,
		Failover:      FailoverAuto,
		AuditPeriod:   15 * time.Minute,
		Accelerate:    NoAcceleration,
		SyncPeriod:    syncPeriod,
		HealthAddress: "0.0.0.0:10256",
		HTTPAddress:   "127.0.0.1:10249",
		LogLevel:      "info",
		Logging:       Logging{Format: "text"},
		OOMScoreAdj:   &oom,
		NodePortRange: PortRange{30000, 32767}, // the API server's
		API: API{
			QPS: 5, Burst: 10, ContentType: "application/vnd.kubernetes.protobuf", Resync: 15 * time.Minute,
		},
		Conntrack: Conntrack{
			MaxPerCore: 32 << 10, Min: 128 << 10, TCPEstablished: &established, TCPCloseWait: &closeWait,
		},
		Windows: Windows{RootHNSEndpoint: "cbr0", SourceRanges: EnforceRanges},
	}
}

// Complete fills in what depends on other settings and was not set: the ports of
// addresses that have none, and the addresses of node ports. A mode that is named keeps kube-proxy's default for it: there, nftables serves node ports
// on the primary addresses only. auto serves them on all addresses, as most of
// kube-proxy's modes do.
func (c *Config) Complete() {
	c.HealthAddress = withPort(c.HealthAddress, healthPort)
	c.HTTPAddress = withPort(c.HTTPAddress, metricsPort)
	if c.Mode == NFTables && !c.NodePorts.Set() {
		c.NodePorts.Primary = true
	}
	if c.NodePorts.Loopback == nil {
		served := c.Mode == iptables
		c.NodePorts.Loopback = &served
	}
}
