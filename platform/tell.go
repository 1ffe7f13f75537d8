package platform

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// This is what the parts of the proxy tell, and who hears it: logs are written
// where things happen, metrics and Events here. Nothing here blocks.

// hooks are what the engine calls on its goroutine.
func (p *Proxy) hooks() engine.Hooks {
	return engine.Hooks{Synced: p.synced, Drifted: p.drifted, Problem: p.problem}
}

func (p *Proxy) synced(s engine.Sync) {
	p.metrics.Synced(s)
	p.rules()
	p.servers.checks.Update(s.Host, s.Settled)
	for _, standing := range s.Standings {
		if e, ok := p.teller.Standing(standing); ok {
			p.recorder.Add(e)
		}
	}
	if p.cleaner != nil && p.current().Conntrack {
		p.cleaner.Update(s.Host, s.Settled)
		p.cleaner.Update(s.Host, s.Restored)
	}
}

// rules counts those of iptables, where the backend has any.
func (p *Proxy) rules() {
	if c, ok := p.counter().(dataplane.RuleCounter); ok {
		c.Rules(p.metrics.Rules)
	}
}

// packets counts those that meet iptables, where the backend does.
func (p *Proxy) packets() dataplane.Packets {
	if c, ok := p.counter().(dataplane.PacketCounter); ok {
		return c.Packets()
	}
	return dataplane.Packets{}
}

// relays are the counters of the userspace mode, in which the backend has some.
func (p *Proxy) relays() (relay.Stats, bool) {
	if c, ok := p.counter().(relay.Counter); ok {
		return c.Relays(), true
	}
	return relay.Stats{}, false
}

// counter is the backend in use, which may count.
func (p *Proxy) counter() dataplane.Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backend
}

func (p *Proxy) drifted(int) { p.recorder.Add(p.teller.Drifted()) }

func (p *Proxy) problem(problem model.Problem) {
	p.metrics.Problem(problem)
	if e, ok := p.teller.Problem(problem); ok {
		p.recorder.Add(e)
	}
}

// started tells that the proxy starts, and in which mode.
func (p *Proxy) started() {
	mode := p.current()
	p.recorder.Add(p.teller.Starting(p.version, string(mode.Name)))
	if first := mode.Trials[0]; first.Err != nil && p.config.Mode != config.Auto {
		p.recorder.Add(p.teller.Fallback(string(first.Mode), string(mode.Name), first.Err))
	}
}

// switched tells that another mode runs now.
func (p *Proxy) switched(from, to config.Mode) {
	p.metrics.Mode(string(to))
	p.recorder.Add(p.teller.Switched(string(from), string(to)))
}

func (p *Proxy) dropped(fronts int) {
	p.log.Warn("too many fronts wait for their stale UDP flows to be removed, some are given up", "fronts", fronts)
}

func (p *Proxy) cleaned(r flows.Report) {
	p.metrics.FlowsCleaned(r)
	if r.Err != nil {
		p.log.Warn("stale UDP flows were not all removed", "error", r.Err, "retry", r.Retry)
		return
	}
	p.log.Debug("stale UDP flows removed", "flows", r.Deleted, "fronts", r.Frontends, "took", r.Took)
}
