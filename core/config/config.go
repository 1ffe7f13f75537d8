// Package config is Tandem's configuration as one typed, validated struct.
// Flags and files are turned into it at the edge; nothing below cmd knows where
// a value came from.
package config

import (
	"net/netip"
	"time"
)

// Config is everything a user can set. Default gives the values that hold when
// nothing is set.
type Config struct {
	Manifests string // a folder of manifests to serve instead of an API server
	NodeName  string // which Node object is this machine
	Mode      Mode

	DetectLocal        DetectLocal
	ClusterCIDRs       []netip.Prefix // for DetectClusterCIDR, the first of each family
	PodBridge          string         // for DetectBridgeInterface
	PodInterfacePrefix string         // for DetectInterfacePrefix

	NodePorts     NodePorts
	MasqueradeAll bool
	MasqueradeBit int // which bit of the packet mark asks for SNAT, 0 to 31

	// AuditPeriod is how often the data plane is read back and compared though
	// nothing points to a foreign hand in it. Foreign writes are noticed within a
	// second without it where the system can tell.
	AuditPeriod   time.Duration
	MinSyncPeriod time.Duration // the least time between two syncs; 0 syncs at once

	HTTPAddress string // where status, health and metrics are served; empty for nowhere
	LogLevel    string // debug, info, warn or error
}

// Mode names a data plane, as in kube-proxy's --proxy-mode. Each backend brings
// its own name.
type Mode string

// The modes that the configuration itself treats in a way of their own.
const (
	Auto     Mode = "auto"
	NFTables Mode = "nftables"
)

// DetectLocal says how packets of this node's pods are told from others.
type DetectLocal string

// The ways, with kube-proxy's names. The empty one is DetectClusterCIDR where
// cluster CIDRs are given and otherwise knows no pods.
const (
	DetectClusterCIDR     DetectLocal = "ClusterCIDR"
	DetectNodeCIDR        DetectLocal = "NodeCIDR"
	DetectBridgeInterface DetectLocal = "BridgeInterface"
	DetectInterfacePrefix DetectLocal = "InterfaceNamePrefix"
)

// NodePorts says on which of the machine's addresses node ports answer: on all
// of them (the zero value), on those inside Prefixes, or on the primary ones.
type NodePorts struct {
	Prefixes []netip.Prefix
	Primary  bool
	Loopback bool // on 127.0.0.1 as well, in modes that can
}

// Complete fills in what depends on other settings and was not set. A mode that
// is named keeps kube-proxy's default for it: there, nftables serves node ports
// on the primary addresses only. auto serves them on all addresses, as most of
// kube-proxy's modes do.
func (c *Config) Complete() {
	if c.Mode == NFTables && !c.NodePorts.Primary && len(c.NodePorts.Prefixes) == 0 {
		c.NodePorts.Primary = true
	}
}

// Default returns the configuration that holds when nothing is set.
func Default() Config {
	return Config{
		Mode:          Auto,
		DetectLocal:   DetectClusterCIDR,
		MasqueradeBit: 14,
		AuditPeriod:   15 * time.Minute,
		HTTPAddress:   "127.0.0.1:10249",
		LogLevel:      "info",
	}
}
