package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
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
	if !p.switching.TryLock() {
		return Switched{}, errors.New("another switch is under way")
	}
	defer p.switching.Unlock()
	start := time.Now()
	from := p.current()
	mode, err := named(Modes(), to)
	if err != nil {
		return Switched{}, err
	}
	if mode.Name == from.Name {
		return Switched{}, fmt.Errorf("the mode is %s already", to)
	}
	next, err := p.openBeside(ctx, mode)
	if err != nil {
		return Switched{}, fmt.Errorf("mode %s: %w", to, err)
	}
	old, err := p.Engine.Switch(ctx, next)
	if err != nil {
		err = fmt.Errorf("nothing was switched, mode %s goes on: mode %s: %w", from.Name, to, err)
		return Switched{}, errors.Join(err, p.retire(context.WithoutCancel(ctx), mode, next))
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
func (p *Proxy) openBeside(ctx context.Context, mode dataplane.Mode) (dataplane.Backend, error) {
	here, err := place()
	if err != nil || here != p.place {
		return nil, errors.Join(errors.New("this is not the network namespace that the proxy was opened in"), err)
	}
	if err := Probe(ctx, mode); err != nil {
		return nil, err
	}
	return mode.Open(p.config)
}

// retireSoon removes an old mode and reports whether that goes on for longer
// than one wants to wait.
func (p *Proxy) retireSoon(mode dataplane.Mode, old dataplane.Backend) (draining bool) {
	gone := make(chan struct{})
	p.group.Go(func() {
		defer close(gone)
		if err := p.retire(p.running, mode, old); err != nil {
			p.log.Warn("the old mode was not removed as a whole; tandem cleanup does it while no tandem runs", "mode", mode.Name, "error", err)
		}
	})
	select {
	case <-gone:
		return false
	case <-time.After(removal):
		return true
	}
}

// retire removes what a backend programmed and closes it.
func (p *Proxy) retire(ctx context.Context, mode dataplane.Mode, b dataplane.Backend) error {
	err := errors.Join(b.Remove(ctx), b.Close())
	if err != nil {
		return fmt.Errorf("remove mode %s: %w", mode.Name, err)
	}
	p.log.Info("mode removed", "mode", mode.Name)
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
