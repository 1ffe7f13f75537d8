// SPDX-License-Identifier: Apache-2.0

package track

import (
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Trigger is a change in the cluster that led to a slice of a Service: the time
// of its annotation endpoints.kubernetes.io/last-change-trigger-time. It is what
// the network programming latency is counted from (Kubernetes SIG Scalability).
type Trigger struct {
	Service model.ServiceName
	Family  model.Family
	At      time.Time
}

// maxTriggers bounds how many are kept between two flushes. A flood loses some:
// they only feed a histogram.
const maxTriggers = 4096

// triggers are those that nothing was flushed for yet.
type triggers struct {
	since   time.Time // earlier ones are another run's
	waiting map[*service][]Trigger
	count   int
}

// add notes what led to a slice. The same version again, as after a relist, is
// ignored.
func (ts *triggers) add(s *service, before, now *model.Slice) {
	if ts.waiting == nil || !now.Triggered.After(ts.since) || ts.count == maxTriggers {
		return
	}
	if before != nil && before.Triggered.Equal(now.Triggered) {
		return
	}
	ts.waiting[s] = append(ts.waiting[s], Trigger{s.name, now.Family, now.Triggered})
	ts.count++
}

// forget drops a Service's triggers: after a deletion the last one belongs to an
// older change, as in kube-proxy.
func (ts *triggers) forget(s *service) {
	ts.count -= len(ts.waiting[s])
	delete(ts.waiting, s)
}
