package iptables

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// DefaultMark is the bit of the packet mark that kube-proxy uses, too: bit 14.
const DefaultMark = 1 << 14

// Options are the settings of this data plane.
type Options struct {
	// Mark is the bit of the packet mark that says "masquerade"; 0 means
	// DefaultMark.
	Mark uint32
	// Families are those to serve; none means both. Ports of another family are
	// a Gap.
	Families []model.Family
	// NoRandomFully leaves the choice of source ports to the kernel's older way,
	// for iptables before 1.6.2 and kernels before 3.13.
	NoRandomFully bool
	// Liberal keeps packets that connection tracking finds invalid; otherwise
	// they are dropped, since some would reset connections (issue 74839 of
	// kubernetes/kubernetes).
	Liberal bool
}

func (o Options) bit() uint32 {
	if o.Mark == 0 {
		return DefaultMark
	}
	return o.Mark
}

// Compiler turns ports into objects (dataplane.Compiler). It is safe for
// concurrent use.
type Compiler struct {
	options  Options
	families []model.Family
	branches branchCache
}

// NewCompiler returns a compiler.
func NewCompiler(o Options) *Compiler {
	c := &Compiler{options: o, families: o.Families}
	if len(c.families) == 0 {
		both := model.Families()
		c.families = both[:]
	}
	return c
}

func (c *Compiler) serves(f model.Family) bool { return slices.Contains(c.families, f) }

// Equal implements dataplane.Compiler. What a rule tells of the past is no
// difference.
func (c *Compiler) Equal(a, b Value) bool {
	return a == b || againstAlone(a) && againstAlone(b)
}

// againstAlone reports whether an object is the rule against martians.
func againstAlone(v Value) bool {
	if v.Len() != 1 {
		return false
	}
	for r := range v.All() {
		return against(r)
	}
	return false
}

// Linger implements dataplane.Compiler: nothing here is dear to make.
func (c *Compiler) DeleteDelay(Key) time.Duration { return 0 }

// Rank implements dataplane.Compiler: chains come before the rules that lead to
// them, those of the kernel last.
func (c *Compiler) Rank(k Key) int {
	switch classOf(k.Chain) {
	case whole:
		return wholeRank(k.Chain)
	case foreign:
		return 8
	}
	switch k.Place {
	case placeChain:
		return 0
	case placeBranch:
		return 7
	}
	return 6
}

func wholeRank(chain string) int {
	for rank, prefix := range []string{prefixEndpoint, prefixCluster, prefixExternal, prefixFirewall} {
		if len(chain) > len(prefix) && chain[:len(prefix)] == prefix {
			return 2 + rank
		}
	}
	if len(chain) > len(prefixLocal) && chain[:len(prefixLocal)] == prefixLocal {
		return 3
	}
	return 1
}

// Port implements dataplane.Compiler.
func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(Key, Value)) []model.Gap {
	if !c.serves(port.ID.Family) {
		return []model.Gap{{Detail: port.ID.Family.String() + " is not served: this host has no iptables for it"}}
	}
	p := &portCompiler{
		branches: &c.branches, host: host, port: port, emit: emit,
		name: port.ID.String(), hash: portHash(port.ID),
	}
	p.namePools()
	for i := range port.Frontends {
		p.front(&port.Frontends[i])
	}
	p.externalChains()
	p.poolChains()
	p.healthPort()
	return p.gaps
}

// healthPort opens the port on which load balancers ask for local endpoints.
// All ports of a Service share it.
func (p *portCompiler) healthPort() {
	if p.port.HealthPort == 0 {
		return
	}
	emitLine(p.chain(xtables.Filter, chainNodePorts), xtables.Rule{
		Proto: model.TCP, Ports: xtables.Port(p.port.HealthPort),
		Comment: p.port.ID.Service.String() + " health check node port", Target: xtables.Accept,
	}, p.emit)
}

// localhost is the gap of node ports on ::1, which nothing can route.
func (p *portCompiler) localhost(f *model.Frontend) {
	one := netip.IPv6Loopback()
	if unspecified(f) && p.port.ID.Family == model.IPv6 && p.host.NodePorts.Contains(one) {
		p.gap(f, "node ports do not answer on ::1")
	}
}
