// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	inmemory "github.com/tandem-proxy/tandem/core/test/memory"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/platform"
)

// path is the way from the tracker to the kernel, without a source before it
// and on one goroutine, so that what is measured is exactly that.
type path struct {
	world
	ctx     context.Context
	open    opener
	tracker *track.Tracker
	backend dataplane.Backend
}

// opener opens a data plane; again, the same one.
type opener func(context.Context, *config.Config) (dataplane.Backend, error)

// ofMode opens the data plane of a mode on this machine.
func ofMode(name config.Mode) opener {
	return func(ctx context.Context, c *config.Config) (dataplane.Backend, error) {
		mode, err := platform.Find(name)
		if err != nil {
			return nil, err
		}
		return mode.Open(ctx, c, slog.New(slog.DiscardHandler))
	}
}

// inMemory opens a data plane that is a map: what remains is the cost of everything
// before the kernel.
func inMemory[K comparable, V any](c dataplane.Compiler[K, V], l dataplane.Limits) opener {
	d := inmemory.New[K](c.Equal, l)
	return func(context.Context, *config.Config) (dataplane.Backend, error) { return dataplane.New(c, d), nil }
}

func openPath(ctx context.Context, open opener, w world) (p *path, err error) {
	c := config.Default()
	c.NodeName = nodeName
	c.ClusterCIDRs = []netip.Prefix{pods}
	p = &path{world: w, ctx: ctx, open: open, tracker: track.New()}
	if p.backend, err = open(ctx, &c); err != nil {
		return nil, err
	}
	host := resolve.Host(&c, nil, nil, model.Machine{})
	if err := p.backend.Adopt(ctx); err != nil {
		return nil, errors.Join(err, p.backend.Close())
	}
	p.tracker.KeepSlots(p.backend.Slots)
	p.tracker.SetHost(host)
	p.backend.SetHost(host)
	return p, nil
}

// endpoints returns a slice of the world as the tracker takes it.
func (p *path) endpoints(i, replaced, generation int) *model.Slice {
	s, _ := watch.Slice(p.slice(i, replaced, generation))
	return s
}

// load hands all inputs to the tracker.
func (p *path) load() {
	for i := range p.services {
		s, _ := watch.Service(p.service(i))
		p.tracker.Set(s)
		p.tracker.Set(p.endpoints(i, 0, 0))
	}
}

// apply brings the kernel up to date and returns how long it took and what it
// wrote.
func (p *path) apply() (time.Duration, dataplane.Work, error) {
	start := time.Now()
	p.backend.Update(p.tracker.Flush())
	work, err := p.backend.Sync(p.ctx)
	return time.Since(start), work, err
}

// program programs everything from nothing.
func (p *path) program(s samples) error {
	p.load()
	before := ownCPU()
	took, work, err := p.apply()
	s.add("cold", took.Seconds())
	s.add("cold CPU", ownCPU()-before)
	s.add("objects", float64(work.Ops))
	s.add("transactions", float64(work.Commits))
	return err
}

// change applies n changes one by one, and records under a name how long each
// took, from the tracker's event to the kernel's acknowledgement, its CPU time
// (children included) and how much it wrote.
func (p *path) change(s samples, name string, n int, slice func(n int) *model.Slice) error {
	for i := range n {
		changed := slice(i)
		start, before := time.Now(), ownCPU()
		p.tracker.Set(changed)
		_, work, err := p.apply()
		if err != nil {
			return err
		}
		s.add(name, time.Since(start).Seconds())
		s.add(name+" CPU", ownCPU()-before)
		s.add(name+" writes", float64(work.Ops))
	}
	return nil
}

// replace replaces one endpoint of some Service, n times.
func (p *path) replace(s samples, name string, n int) error {
	return p.change(s, name, n, func(i int) *model.Slice { return p.endpoints(i*7%p.services, 1, 1+i) })
}

// resize removes and adds an endpoint of one Service in turn, n times in all.
func (p *path) resize(s samples, name string, n int) error {
	return p.change(s, name, n, func(i int) *model.Slice {
		e := p.endpoints(11%p.services, 0, 0)
		e.Endpoints = e.Endpoints[:p.world.endpoints-i%2]
		return e
	})
}

// audit reads the kernel back and compares, while changes continue.
func (p *path) audit(s samples) error {
	start, before := time.Now(), ownCPU()
	drift, err := p.backend.Audit(p.ctx)
	if err == nil && drift != 0 {
		err = fmt.Errorf("an audit found %d objects not as they were left", drift)
	}
	s.add("audit", time.Since(start).Seconds())
	s.add("audit CPU", ownCPU()-before)
	return err
}

// restart resets the world to its first state, and starts on it.
func (p *path) restart(s samples) error {
	p.load()
	if _, _, err := p.apply(); err != nil {
		return err
	}
	begin, before := time.Now(), ownCPU()
	again, err := openPath(p.ctx, p.open, p.world)
	if err != nil {
		return err
	}
	defer again.backend.Close()
	readBack := time.Since(begin)
	s.add("read back", readBack.Seconds())
	spent := ownCPU() - before
	again.load()
	before = ownCPU()
	took, work, err := again.apply()
	s.add("compare", took.Seconds())
	s.add("restart", (readBack + took).Seconds())
	s.add("restart CPU", spent+ownCPU()-before)
	s.add("restart writes", float64(work.Ops))
	return err
}

// close removes what was programmed.
func (p *path) close() error {
	return errors.Join(p.backend.Remove(p.ctx), p.backend.Close())
}
