package engine

import (
	"sync/atomic"
	"time"
)

// Changes counts changes of the inputs.
type Changes struct{ Services, Slices uint64 }

func (c Changes) plus(o Changes) Changes {
	return Changes{c.Services + o.Services, c.Slices + o.Slices}
}

// Audits counts how often the data plane was read back.
type Audits struct{ Done, Failed uint64 }

// inflow counts what arrives. It is safe for concurrent use and never waits: a
// source writes to it with every event.
type inflow struct {
	services, slices atomic.Uint64
	latest           atomic.Int64 // nanoseconds since the epoch; 0 for never
}

func (f *inflow) add(c Changes) {
	f.services.Add(c.Services)
	f.slices.Add(c.Slices)
	f.latest.Store(time.Now().UnixNano())
}

func (f *inflow) read() (latest time.Time, seen Changes) {
	if n := f.latest.Load(); n != 0 {
		latest = time.Unix(0, n)
	}
	return latest, Changes{f.services.Load(), f.slices.Load()}
}
