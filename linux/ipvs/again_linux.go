package ipvs

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

var _ dataplane.Sentinel = (*Driver)(nil)

// Disturbed implements dataplane.Sentinel. The kernel tells nobody of changes to
// virtual servers and sets, so all is read again every now and then: as often as
// kube-proxy's syncPeriod says, which is how often that writes everything again.
func (d *Driver) Disturbed(context.Context) (bool, error) { return d.again.due(time.Now()), nil }

// readShare is how small a part of the time reading may take at most. With 10,000
// Services everything is some 60,000 objects.
const readShare = 200

// again is when everything is to be read again. It is safe for concurrent use.
type again struct {
	every time.Duration // 0 is never

	mu   sync.Mutex
	read time.Time // the last time
	took time.Duration
}

func (a *again) due(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.every > 0 && now.Sub(a.read) > max(a.every, readShare*a.took)
}

// done notes a reading, also one that failed: it is no use to insist.
func (a *again) done(begin, end time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read, a.took = begin, end.Sub(begin)
}
