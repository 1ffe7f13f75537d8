// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
)

// listenFor is how long other writers are recorded after drift was found.
const listenFor = 10 * time.Minute

// listenForWriters records other writers to the data plane for a while after drift was
// found: it makes our own changes more expensive. So the first drift has no names.
func (p *Proxy) listenForWriters(ctx context.Context) {
	if p.writers == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.drifted:
		}
		listening, stop := context.WithTimeout(ctx, listenFor)
		err := p.writers.Listen(listening)
		if stop(); err != nil {
			p.log.Warn("listening for other writers failed; drift is shown without names", "err", err)
			return
		}
	}
}

// writersSince returns the other writers to the data plane since a time. The engine
// calls it when drift was found.
func (p *Proxy) writersSince(t time.Time) []engine.Writer {
	if p.writers == nil {
		return nil
	}
	select {
	case p.drifted <- struct{}{}:
	default: // listenForWriters continues anyway
	}
	return p.writers.Since(t)
}
