// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/tracing"
)

// Proxy is a whole proxy, opened and ready to run.
type Proxy struct {
	// Verbosity, if set before Run, changes how much is logged: /debug/flags/v asks
	// for it, on any goroutine.
	Verbosity func(int)

	system  system
	version string
	log     *slog.Logger
	config  *config.Config                // as at the start
	live    atomic.Pointer[config.Config] // as last changed by Reconfigure
	base    *config.Config                // what the parts were opened with; Reconfigure's own

	lock      Held
	network   network
	machine   *machine
	source    source
	choice    Choice         // at the start
	engine    *engine.Engine // owns the data plane in use
	switcher  *switcher
	writers   writers           // nil where the system does not report them
	listeners Listening         // nil where they cannot be told
	tracing   *tracing.Exporter // nil where changes are not traced
	flows     [2]flowTable      // for each of the cleaners; nil where there are none
	flowsErr  error             // why flows could not be opened, until it is logged
	tracked   flowLister        // all of them, for answers; nil where they are not listed
	cleaners  [2]*flows.Cleaner // of stale UDP flows, of TCP handshakes
	failover  *failover         // nil where it is off
	report    *reporter
	servers   servers
	kernel    turn // of the one query at a time that reads the data plane
	answers   turn // of the one at a time that does not
	memory    *releaser

	group   sync.WaitGroup  // of what Run starts
	running context.Context // from Open to the end of Run
	stop    context.CancelFunc
}

// Status returns the engine's status. It never blocks.
func (p *Proxy) Status() engine.Status { return p.engine.Status() }

// Snapshot returns everything the engine knows.
func (p *Proxy) Snapshot(ctx context.Context) (*engine.Snapshot, error) {
	return p.engine.Snapshot(ctx)
}

// Document returns the status document.
func (p *Proxy) Document(ctx context.Context) (status.Document, error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return status.Document{}, err
	}
	return status.Of(p.facts(status.Filter{}), s), nil
}

func (p *Proxy) facts(only status.Filter) status.Facts {
	return status.Facts{
		Only:    only,
		Version: p.version, Node: p.config.NodeName, Mode: p.mode(), Fallback: p.fallback(), Offload: p.config.Accelerate == config.Flowtable, Source: p.config.Source(), Health: p.health(), Inputs: p.source.inputs(),
	}
}

// fallback is why the mode in use is not the one that was configured at the start; empty
// when it is, or was chosen since.
func (p *Proxy) fallback() string {
	if p.mode() != string(p.choice.Name) {
		return ""
	}
	return p.choice.Fallback()
}

// mode is the name of the mode in use.
func (p *Proxy) mode() string { return string(p.engine.Current().Mode.Name) }

// health judges the proxy.
func (p *Proxy) health() status.Health {
	return status.HealthOf(p.Status(), 2*p.live.Load().SyncPeriod, p.source.stale())
}

// packets are counted by the backend in use, if it does.
func (p *Proxy) packets() dataplane.Packets {
	return p.engine.Current().Packets()
}

// relays are the counters of the userspace mode, if it is in use.
func (p *Proxy) relays() (relay.Stats, bool) {
	if c, ok := p.engine.Current().Backend.(relay.Backend); ok {
		return c.Relays(), true
	}
	return relay.Stats{}, false
}

// failovers are the counters of endpoint failover, if it is not off.
func (p *Proxy) failovers() (metrics.Failover, bool) {
	if p.failover == nil {
		return metrics.Failover{}, false
	}
	return p.failover.stats(), true
}

// suspectsChanged takes ejected endpoints that a source has changed.
func (p *Proxy) suspectsChanged(all []netip.Addr) {
	if p.failover != nil {
		p.failover.suspectsChanged(all)
	}
}

// unserved reports whether load balancer IPs of a port are not programmed.
func (p *Proxy) unserved(id model.PortID) bool {
	return slices.ContainsFunc(p.engine.Current().Backend.Gaps(id), func(g model.Gap) bool { return g.Unserved })
}

// writing is what precedes a sync, on the engine's goroutine.
func (p *Proxy) writing(deltas []model.Delta) {
	for _, c := range p.cleaners {
		if c != nil {
			c.Prepare(deltas)
		}
	}
}

// synced is what follows a sync, on the engine's goroutine.
func (p *Proxy) synced(s engine.Sync) {
	plane := p.engine.Current()
	p.report.synced(s)
	p.tracing.Synced()
	p.memory.changed()
	p.servers.checks.Update(s.Host, s.Applied)
	for _, c := range p.cleaners {
		if c != nil && plane.Mode.Conntrack {
			c.Update(s.Host, s.Applied)
			c.Update(s.Host, s.Restored)
		}
	}
}

// connected takes the addresses of the API server, for each new connection.
func (p *Proxy) connected(all []netip.AddrPort) {
	if p.machine.setAPIServers(all) {
		p.engine.HostChanged()
	}
}

// host merges the configuration with this machine's Node, the ranges of cluster IPs
// and the machine's facts. The engine calls it on its own goroutine.
func (p *Proxy) host(n *model.Node, cidrs []*model.ServiceCIDR) (*model.Host, []model.Problem) {
	c, machine := p.live.Load(), p.machine.now()
	return resolve.Host(c, n, cidrs, machine), resolve.HostProblems(c, n, cidrs, machine, true)
}
