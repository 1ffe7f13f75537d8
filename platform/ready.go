package platform

import (
	"context"
	"time"
)

// Ready waits until everything that the source told is programmed for the first
// time, and reports whether that came before ctx ended.
func (p *Proxy) Ready(ctx context.Context) bool {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !p.Status().Synced {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}
