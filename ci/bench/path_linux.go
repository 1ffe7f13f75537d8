// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/platform"
)

// path is the way from the tracker to the kernel, without a source before it
// and on one goroutine, so that what is measured is exactly that.
type path struct {
	world
	ctx     context.Context
	tracker *track.Tracker
	backend dataplane.Backend
}

func openPath(ctx context.Context, name config.Mode, w world) (*path, error) {
	c := config.Default()
	c.NodeName = nodeName
	c.ClusterCIDRs = []netip.Prefix{pods}
	mode, err := platform.Find(name)
	if err != nil {
		return nil, err
	}
	p := &path{world: w, ctx: ctx, tracker: track.New()}
	if p.backend, err = mode.Open(&c); err != nil {
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
		p.tracker.SetService(s)
		p.tracker.SetSlice(p.endpoints(i, 0, 0))
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
	before := cpu(os.Getpid())
	took, work, err := p.apply()
	s.add("cold", took.Seconds())
	s.add("cold CPU", cpu(os.Getpid())-before)
	s.add("objects", float64(work.Ops))
	s.add("transactions", float64(work.Commits))
	return err
}

// change applies n changes one by one, and records under a name how long each
// took, from the tracker's event to the kernel's acknowledgement, and how much it
// wrote.
func (p *path) change(s samples, name string, n int, slice func(n int) *model.Slice) error {
	before := cpu(os.Getpid())
	for i := range n {
		changed := slice(i)
		start := time.Now()
		p.tracker.SetSlice(changed)
		_, work, err := p.apply()
		if err != nil {
			return err
		}
		s.add(name, time.Since(start).Seconds())
		s.add(name+" writes", float64(work.Ops))
	}
	s.add(name+" CPU", (cpu(os.Getpid())-before)/float64(n))
	return nil
}

// audit reads the kernel back and compares, while changes continue.
func (p *path) audit(s samples) error {
	start := time.Now()
	drift, err := p.backend.Audit(p.ctx)
	if err == nil && drift != 0 {
		err = fmt.Errorf("an audit found %d objects not as they were left", drift)
	}
	s.add("audit", time.Since(start).Seconds())
	return err
}

// restart resets the world to its first state, and starts on it.
func (p *path) restart(s samples, name config.Mode) error {
	p.load()
	if _, _, err := p.apply(); err != nil {
		return err
	}
	begin := time.Now()
	again, err := openPath(p.ctx, name, p.world)
	if err != nil {
		return err
	}
	defer again.backend.Close()
	s.add("read back", time.Since(begin).Seconds())
	again.load()
	took, work, err := again.apply()
	s.add("compare", took.Seconds())
	s.add("restart writes", float64(work.Ops))
	return err
}

// close removes what was programmed.
func (p *path) close() error {
	return errors.Join(p.backend.Remove(p.ctx), p.backend.Close())
}
