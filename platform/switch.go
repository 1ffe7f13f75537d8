package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
)

// Switched is what a switch of modes did.
type Switched struct {
	From    config.Mode   `json:"from"`
	To      config.Mode   `json:"to"`
	Took    time.Duration `json:"took"`    // until the new mode served alone; in nanoseconds
	Objects int           `json:"objects"` // in the new data plane
	Gaps    []string      `json:"gaps,omitempty"`
	// Draining says that connections of the old mode still live in it. It is
	// removed when they have ended.
	Draining bool `json:"draining,omitempty"`
}

// removal is how long a switch waits for the old mode to be gone before it says
// that it drains.
const removal = 5 * time.Second

// Switch changes the mode while Services are in use: the new one is programmed
// beside the old one, takes over, and then the old one is removed. When ctx ends
// before that, or the new mode cannot do it all, everything stays as it was. The
// calling thread must be in the proxy's network namespace.
func (p *Proxy) Switch(ctx context.Context, to config.Mode) (Switched, error) {
	return p.switchTo(ctx, to, p.live.Load())
}

// switchTo opens the new mode with a configuration that may be another.
func (p *Proxy) switchTo(ctx context.Context, to config.Mode, c *config.Config) (Switched, error) {
	if !p.Status().Synced { // what an earlier run has left in that mode may be all that serves
		return Switched{}, engine.ErrNotReady
	}
	select { // it clears away what was there before, and is soon done
	case <-p.tidied:
	case <-ctx.Done():
		return Switched{}, ctx.Err()
	}
	if !p.switching.try() {
		return Switched{}, errors.New("another switch is under way")
	}
	defer p.switching.give()
	start := time.Now()
	from := p.current()
	mode, err := named(Modes(), to)
	if err != nil {
		return Switched{}, err
	}
	if mode.Name == from.Name {
		return Switched{}, fmt.Errorf("the mode is %s already", to)
	}
	if err := p.recall(ctx, mode.Name); err != nil {
		return Switched{}, err
	}
	next, err := p.openBeside(ctx, mode, c)
	if err != nil {
		return Switched{}, fmt.Errorf("mode %s: %w", to, err)
	}
	old, err := p.Engine.Switch(ctx, next)
	if err != nil {
		err = fmt.Errorf("nothing was switched, mode %s goes on: mode %s: %w", from.Name, to, err)
		return Switched{}, errors.Join(err, p.remove(context.WithoutCancel(ctx), mode, next))
	}
	p.become(mode, next)
	p.switched(from.Name, to)
	done := Switched{From: from.Name, To: to, Took: time.Since(start)}
	p.log.Info("mode switched", "from", from.Name, "to", to, "took", done.Took)
	if s, err := p.Snapshot(ctx); err == nil {
		done.Objects = s.Backend.Objects
		for _, gaps := range s.Backend.Gaps {
			for _, g := range gaps {
				done.Gaps = append(done.Gaps, g.Detail)
			}
		}
		slices.Sort(done.Gaps)
		done.Gaps = slices.Compact(done.Gaps) // most are of many ports
	}
	done.Draining = p.retireSoon(from.Mode, old)
	return done, nil
}

// openBeside opens a second mode beside the one that runs.
func (p *Proxy) openBeside(ctx context.Context, mode dataplane.Mode, c *config.Config) (dataplane.Backend, error) {
	if err := p.here(); err != nil {
		return nil, err
	}
	if err := Probe(ctx, mode); err != nil {
		return nil, err
	}
	return mode.OpenWhenReady(ctx, c)
}

// here returns an error unless the calling thread is in the proxy's network
// namespace. In a test it may be anywhere.
func (p *Proxy) here() error {
	here, err := place()
	if err == nil && here == p.place {
		return nil
	}
	return errors.Join(errors.New("this is not the network namespace that the proxy was opened in"), err)
}

// retirement is an old mode on its way out.
type retirement struct {
	stop context.CancelFunc
	gone chan struct{} // closed when it is over
}

// retireSoon removes an old mode and reports whether that goes on for longer
// than one wants to wait.
func (p *Proxy) retireSoon(mode dataplane.Mode, old dataplane.Backend) (draining bool) {
	ctx, stop := context.WithCancel(p.running)
	r := retirement{stop, make(chan struct{})}
	p.retiring[mode.Name] = r
	p.group.Go(func() {
		defer close(r.gone)
		defer stop()
		switch err := p.retire(ctx, mode, old); {
		case ctx.Err() != nil:
			p.log.Info("the old mode stays for its connections; tandem cleanup removes it while no tandem runs", "mode", mode.Name)
		case err != nil:
			p.log.Warn("the old mode was not removed as a whole; tandem cleanup does it while no tandem runs", "mode", mode.Name, "error", err)
		}
	})
	select {
	case <-r.gone:
		return false
	case <-time.After(removal):
		return true
	}
}

// recall ends the retirement of a mode that is wanted again. What is left of it
// is found there by whoever opens it next.
func (p *Proxy) recall(ctx context.Context, name config.Mode) error {
	r, ok := p.retiring[name]
	if !ok {
		return nil
	}
	r.stop()
	select {
	case <-r.gone:
		delete(p.retiring, name)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mode %s is still being removed: %w", name, ctx.Err())
	}
}

// retire lets the connections of a backend end, removes what it programmed and
// closes it. When ctx ends before, what is there stays.
func (p *Proxy) retire(ctx context.Context, mode dataplane.Mode, b dataplane.Backend) error {
	if err := b.Drain(ctx); err != nil {
		return errors.Join(fmt.Errorf("mode %s: let its connections end: %w", mode.Name, err), b.Close())
	}
	return p.remove(ctx, mode, b)
}

// remove removes what a backend programmed and closes it.
func (p *Proxy) remove(ctx context.Context, mode dataplane.Mode, b dataplane.Backend) error {
	err := errors.Join(b.Remove(ctx), b.Close())
	if err != nil {
		return fmt.Errorf("remove mode %s: %w", mode.Name, err)
	}
	p.log.Debug("mode removed", "mode", mode.Name)
	return nil
}

func (p *Proxy) current() Choice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

func (p *Proxy) become(mode dataplane.Mode, b dataplane.Backend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.backend = Choice{Mode: mode, Trials: append(p.mode.Trials, Trial{Mode: mode.Name})}, b
}
