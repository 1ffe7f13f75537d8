// SPDX-License-Identifier: Apache-2.0

// Package config is Tandem's configuration as one typed, validated struct, and
// the one list of everything that can be set in it. Nothing below cmd knows
// where a value came from.
//
//	command line ──▶ Assignment ──┐
//	                              ├──▶ Build ──▶ Config + Report
//	config/file  ──▶ Assignment ──┘      │
//	                                     └── Settings: name, flag, path, doc, default, live
//
// Settings drives all of it: which flags and fields there are, their defaults,
// `tandem config explain`, the file that is written, and Diff, which returns what
// of a change can be applied to a running proxy.
package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/printable"
)

// Config is everything a user can set. Default gives the values that hold when
// nothing is set.
type Config struct {
	Manifests string // a folder of manifests to serve instead of an API server
	// NodePortRange has the node ports that manifests may request. An API server
	// has a range of its own, and keeps to it.
	NodePortRange PortRange
	API           API    // the API server to watch, where Manifests is empty
	NodeName      string // which Node object is this machine
	NodeIsHost    bool   // it is the host name, which nothing overrides: written as ""
	Mode          Mode
	TakeOver      bool // replace what kube-proxy has left
	Strict        bool // a mode that is named and does not work here is an error: no fallback

	// NodeIP is this machine's primary address, overriding that of its Node object:
	// kube-proxy's bindAddress, which binds nothing. Unspecified (0.0.0.0, ::) or
	// invalid: that of the Node object is used.
	NodeIP netip.Addr

	DetectLocal        DetectLocal
	ClusterCIDRs       []netip.Prefix // for DetectClusterCIDR, the first of each family
	PodBridge          string         // for DetectBridgeInterface
	PodInterfacePrefix string         // for DetectInterfacePrefix

	NodePorts     NodePorts
	Gates         Gates // kube-proxy's feature gates
	Accelerate    Acceleration
	GatewayRoutes bool // follow TCPRoutes and UDPRoutes of the API server
	ExternalIPs   ExternalIPs
	MasqueradeAll bool
	MasqueradeBit int // fwmark bit that marks packets for SNAT, 0 to 31

	// Failover selects what happens with endpoints that stop answering.
	Failover Failover

	// AuditPeriod is how often the data plane is read back and compared though
	// nothing indicates an external change. External writes are noticed within a
	// second without it where the system reports them.
	AuditPeriod      time.Duration
	MetricsServices  int           // how many Services have a metric of their connections
	CountEndpoints   bool          // with CountConnections: by endpoint, too
	CountConnections bool          // count new connections by frontend, where the mode can: for `tandem top`
	MinSyncPeriod    time.Duration // the least time between two syncs; 0 syncs at once
	// SyncPeriod is kube-proxy's: what waits for twice as long without being
	// programmed makes the proxy unhealthy. Nothing is written periodically; what
	// no system reports changes of is read back about as often.
	SyncPeriod time.Duration

	// Used by some modes only.
	IPVS    IPVS
	Windows Windows

	Conntrack   Conntrack
	OOMScoreAdj *int // of the proxy's own process; nil keeps it

	HealthAddress string // where /healthz and /livez are served for load balancers; empty for nowhere
	HTTPAddress   string // where status, health and metrics are served; empty for nowhere
	BindHardFail  bool   // an address that cannot be bound ends the process; otherwise it is retried
	TraceEndpoint string // URL of an OpenTelemetry collector that gets a trace of each change; empty for none
	Profiling     bool   // serve /debug/pprof on the metrics address

	LogLevel string // debug, info, warn or error
	Logging  Logging

	// Unused keeps, by the setting's name, what kube-proxy has and Tandem has no
	// use for, so that nothing is lost when a configuration is written. It is
	// replaced, never changed.
	Unused map[string][]string
}

// API is the connection to the API server. With neither a kubeconfig nor a
// server, the pod's own service account is used.
type API struct {
	Kubeconfig  string
	Server      string // overrides the kubeconfig's, as --master does
	QPS         float32
	Burst       int
	ContentType string
	// Resync is kube-proxy's configSyncPeriod. Nothing is lost by a long one:
	// the watch brings every change.
	Resync time.Duration
}

// IPVS has the settings of the ipvs mode.
type IPVS struct {
	Scheduler    string         // rr when empty
	ExcludeCIDRs []netip.Prefix // virtual servers with these addresses are left alone
	StrictARP    bool
	// Time-outs of IPVS connections; 0 keeps the kernel's.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
}

// Windows has the settings of the modes for Windows.
type Windows struct {
	Service               bool   // run as a service of the service manager
	NetworkName           string // the HNS network; found when empty
	SourceVIP             string // the source address for remote endpoints on overlay networks; found when empty
	DSR                   bool   // cluster IPs answer past the load balancer, where HNS can; see defaultDSR
	RootHNSEndpoint       string // the endpoint of the host on l2bridge networks
	ForwardHealthCheckVIP bool
	SourceRanges          SourceRanges
	DynamicPorts          int    // how many TCP ports the node's dynamic range has
	Record                string // the file that calls of HNS are recorded in; empty for none
}

// SourceRanges selects the treatment of a load balancer IP whose
// loadBalancerSourceRanges HNS cannot enforce.
type SourceRanges string

const (
	EnforceRanges SourceRanges = "enforce" // such an IP is not programmed
	TrustRanges   SourceRanges = "trust"   // it is: the cloud's load balancer filters
)

// Conntrack are the settings of the node's connection tracking. 0 and nil leave
// them unchanged.
type Conntrack struct {
	MaxPerCore, Min              int
	TCPEstablished, TCPCloseWait *time.Duration
	UDP, UDPStream               time.Duration
	TCPBeLiberal                 bool
}

// Logging is how much is logged, and how, in kube-proxy's terms.
type Logging struct {
	Format    string // text or json
	Verbosity int    // 0 and up; 4 and more is debug
	// Modules are verbosities of single source files of Kubernetes' client, as
	// "pattern=N".
	Modules []string
}

// Mode names a data plane, as in kube-proxy's --proxy-mode. Each backend brings
// its own name.
type Mode string

// The modes that parts of the configuration are for. Another mode is one to which
// everything applies that is for no mode in particular.
const (
	Auto        Mode = "auto"
	NFTables    Mode = "nftables"
	iptables    Mode = "iptables"
	ipvs        Mode = "ipvs"
	userspace   Mode = "userspace"
	kernelspace Mode = "kernelspace"
)

// Failover selects what happens with endpoints that stop answering.
type Failover string

// The values of Failover. Auto is on in modes that can detect it; on reports a gap where
// they cannot.
const (
	FailoverAuto    Failover = "auto"
	FailoverOff     Failover = "off"
	FailoverObserve Failover = "observe"
	FailoverOn      Failover = "on"
)

// DetectLocal selects how packets of this node's pods are detected.
type DetectLocal string

// The ways, with kube-proxy's names. The empty one is DetectClusterCIDR where
// cluster CIDRs are given and otherwise knows no pods.
const (
	DetectClusterCIDR     DetectLocal = "ClusterCIDR"
	DetectNodeCIDR        DetectLocal = "NodeCIDR"
	DetectBridgeInterface DetectLocal = "BridgeInterface"
	DetectInterfacePrefix DetectLocal = "InterfaceNamePrefix"
)

// NodePorts selects the machine's addresses on which node ports answer: all
// of them but loopback (the zero value), or those that any of the fields selects.
type NodePorts struct {
	Prefixes  []netip.Prefix
	Primary   bool // the Node's main address of each family
	Localhost bool // loopback addresses
	All       bool

	// Loopback has them answer on loopback addresses as well, if those are inside
	// the other fields' selection. Nil is true for mode iptables, as in kube-proxy.
	Loopback *bool
}

// Set reports whether anything but Loopback is set.
func (n *NodePorts) Set() bool {
	return n.Primary || n.Localhost || n.All || len(n.Prefixes) > 0
}

// OnLoopbackOf reports whether node ports may answer on loopback addresses of IPv4 or IPv6. A range of loopback addresses asks for those of its
// family, as the word localhost does for both.
func (n *NodePorts) OnLoopbackOf(is4 bool) bool {
	return n.Localhost || n.Loopback != nil && *n.Loopback || slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool {
		return p.Addr().Is4() == is4 && p.Masked().Addr().IsLoopback()
	})
}

// Gates are words such as "KubeProxyIPVS=false". Of those about one gate the last counts.
type Gates []string

// Gates of kube-proxy that mean here what they mean there. All others have no effect.
const (
	GateIPVS      = "KubeProxyIPVS"                       // false: the mode ipvs is no choice
	GateLocalhost = "KubeProxyNFTablesLocalhostNodePorts" // false: node ports do not answer on loopback addresses in the mode nftables
)

// Off reports whether a gate was set, and to false.
func (g Gates) Off(name string) (off bool) {
	for _, w := range g {
		if n, on, _ := strings.Cut(w, "="); n == name {
			v, err := strconv.ParseBool(on)
			off = err == nil && !v
		}
	}
	return off
}

// Acceleration is a way past the kernel's stack for established connections.
type Acceleration string

const (
	NoAcceleration Acceleration = "none"
	Flowtable      Acceleration = "flowtable" // nftables' flow offload, in software
)

// ExternalIPs are the external IPs that Services may have and that are rejected without
// being named: this node's own addresses, and others of core/resolve's list. With
// Only no other external IPs are allowed at all.
type ExternalIPs struct {
	Allowed []netip.Prefix
	Only    bool
}

// InCluster is the source of a pod without any other setting.
const InCluster = "in-cluster"

// Source names where Services come from, for people.
func (c *Config) Source() string {
	for _, s := range []string{c.Manifests, printable.URL(c.API.Server), c.API.Kubeconfig} {
		if s != "" {
			return s
		}
	}
	return InCluster
}

// Public returns a copy of the configuration without the passwords and tokens that its URLs may have. Whatever others
// see of a configuration is of such a copy.
func (c *Config) Public() *Config {
	public := *c
	public.API.Server, public.TraceEndpoint = printable.URL(c.API.Server), printable.URL(c.TraceEndpoint)
	return &public
}

// Parts of kube-proxy's defaults.
const (
	healthPort    = 10256
	metricsPort   = 10249
	syncPeriod    = 30 * time.Second
	masqueradeBit = 14
)

// DefaultMark is kube-proxy's default fwmark bit for masquerade.
const DefaultMark = 1 << masqueradeBit

// Default returns the configuration that holds when nothing is set. It is
// kube-proxy's, with these differences: the mode is auto; a change is programmed
// at once (kube-proxy waits for a second by default); and node
// ports do not answer on 127.0.0.1 (with iptables.localhostNodePorts relays serve them there,
// without route_localnet, CVE-2020-8558).
func Default() Config {
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
		OOMScoreAdj:   new(-999),
		NodePortRange: PortRange{30000, 32767}, // the API server's
		API: API{
			QPS: 5, Burst: 10, ContentType: "application/vnd.kubernetes.protobuf", Resync: 15 * time.Minute,
		},
		Conntrack: Conntrack{
			MaxPerCore: 32 << 10, Min: 128 << 10, TCPEstablished: new(24 * time.Hour), TCPCloseWait: new(time.Hour),
		},
		Windows: Windows{RootHNSEndpoint: "cbr0", SourceRanges: EnforceRanges, DynamicPorts: 16384},
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
		c.NodePorts.Loopback = new(c.Mode == iptables)
	}
}

// Change is one setting with two values.
type Change struct {
	Name     string // of the field, or the flag with its dashes
	Old, New string
	Restart  string // why a running proxy cannot take it over; empty when it can
}

// Diff returns the differences between two configurations: those that a running
// proxy can apply, and those that need a restart. When the mode changes, all
// others wait for it, since some may belong to that mode. Settings without effect
// are left out.
func Diff(from, to *Config) (live, restart []Change) {
	publicFrom, publicTo := from.Public(), to.Public()
	for _, s := range Settings() {
		if s.Unused != "" || s.Deprecated != "" || s.Counts != nil && !s.Counts(to.Mode) {
			continue
		}
		before, after := s.Value(from), s.Value(to)
		if slices.Equal(before.Get(), after.Get()) {
			continue
		}
		c := Change{Name: s.Name(), Old: s.Value(publicFrom).String(), New: s.Value(publicTo).String(), Restart: s.Restart}
		if from.Mode != to.Mode {
			c.Restart = restartMode
		}
		if c.Restart == "" {
			live = append(live, c)
		} else {
			restart = append(restart, c)
		}
	}
	return live, restart
}

// Merge returns the configuration that a proxy runs with when it applies from
// another one what needs no restart. Neither argument is changed.
func Merge(running, next *Config) *Config {
	merged := *next
	if next.Mode != running.Mode {
		merged = *running
	}
	for _, s := range Settings() {
		if s.Restart != "" {
			s.Value(&merged).copyFrom(s.Value(running))
		}
	}
	return &merged
}

// Group is settings about one subject, under which help shows their flags.
type Group struct {
	Title    string
	Settings []Setting
}

// Groups returns everything that can be set, in the order in which values are
// applied: what others depend on comes first, the mode before all.
func Groups() []Group {
	return []Group{
		{"Mode", modeSettings()},
		{"Rules", slices.Concat(iptablesSettings(), nftablesSettings())},
		{"IPVS", ipvsSettings()},
		{"Windows", windowsSettings()},
		{"Source of Services", sourceSettings()},
		{"Node and addresses", nodeSettings()},
		{"Health and metrics", serverSettings()},
		{"Connection tracking and process", conntrackSettings()},
		{"Log", logSettings()},
	}
}

// Settings returns the settings of all groups.
func Settings() (all []Setting) {
	for _, g := range Groups() {
		all = append(all, g.Settings...)
	}
	return all
}

// Find returns the settings of a name: a path, a flag with or without its
// dashes, or a section such as "ipvs". The case does not matter.
func Find(name string) (found []Setting) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	flag := strings.TrimLeft(name, "-")
	for _, s := range Settings() {
		path := strings.ToLower(s.Path)
		if path != "" && (path == name || strings.HasPrefix(path, name+".")) || s.Flag != "" && s.Flag == flag {
			found = append(found, s)
		}
	}
	return found
}
