// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
)

// hearFor is for how long after drift was found other writers are heard.
const hearFor = 10 * time.Minute

// hearWriters hears who else writes to the data plane, for a while after drift was found:
// all our own changes cost more meanwhile. So the first drift has no names.
func (p *Proxy) hearWriters(ctx context.Context) {
	if p.writers == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.drifted:
		}
		listening, stop := context.WithTimeout(ctx, hearFor)
		err := p.writers.Listen(listening)
		if stop(); err != nil {
			p.log.Warn("hearing who changes rules failed; drift is shown without names", "err", err)
			return
		}
	}
}

// writersSince tells who else has written to the data plane since a time. It is asked
// when drift was found.
func (p *Proxy) writersSince(t time.Time) []engine.Writer {
	if p.writers == nil {
		return nil
	}
	select {
	case p.drifted <- struct{}{}:
	default: // hearWriters goes on anyway
	}
	return p.writers.Since(t)
}
