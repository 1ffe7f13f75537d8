// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"strings"
	"time"
)

// progressInterval is how often a slow start logs the condition it waits for.
const progressInterval = 5 * time.Second

// logProgress logs what a start waits for, until everything is programmed.
func (p *Proxy) logProgress(ctx context.Context) {
	begin := time.Now()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-p.engine.Programmed():
			return
		case <-ctx.Done():
			return
		case <-tick.C:
			p.log.Info("still starting", "since", time.Since(begin).Round(time.Second), "waiting", strings.Join(p.health().Reasons, "; "))
		}
	}
}

// releaseStartMemory returns the memory that the start needed to the system, once,
// a few seconds after the first sync: it is several times what the proxy needs
// from then on. It reports whether that came before ctx ended.
func (p *Proxy) releaseStartMemory(ctx context.Context) bool {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for quiet := 0; quiet < 2; {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		if p.Status().Synced {
			quiet++
		}
	}
	p.system.collect()
	p.releaseText()
	return true
}

// releaseText returns the pages of the program to the system: those in use are mapped in again.
func (p *Proxy) releaseText() {
	if err := p.system.releaseText(); err != nil {
		p.log.Debug("releasing memory failed", "err", err)
	}
}
