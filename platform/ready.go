package platform

import "context"

// Ready waits until everything that the source told is programmed for the first
// time, and reports whether that came before ctx ended.
func (p *Proxy) Ready(ctx context.Context) bool {
	select {
	case <-p.Programmed():
	case <-ctx.Done():
	}
	return p.Status().Synced
}
