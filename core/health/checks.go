// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Checks serves the healthCheckNodePort of every Service that has one: load
// balancers ask there whether this node has endpoints for it (KEP-3458, and
// externalTrafficPolicy Local). One listener serves a Service in a family; all
// share one connection limit.
//
//	engine ──Update(deltas)──▶ wanted, counts ──dirty──▶ Run: close, open, retry
//	                                  └──────── read by the handlers
//
// A new count is in effect when Update returns. Create it with NewChecks; its
// methods are safe for concurrent use.
type Checks struct {
	o       ChecksOptions
	limiter connLimiter
	serve   *http.Server
	wake    chan struct{} // holds one token when something is dirty

	mu     sync.Mutex
	host   *model.Host
	wanted map[checkKey]*wanted
	dirty  map[checkKey]bool

	// Owned by Run:
	open    map[checkKey]*check
	failing map[checkKey]*failure
	group   sync.WaitGroup
}

// ChecksOptions are what Checks need.
type ChecksOptions struct {
	Listen  Listen      // nil for the usual
	Healthy func() bool // the proxy; part of every answer
	// Unserved, unless nil, tells of ports whose load balancer IPs are not programmed:
	// their Services have no endpoints here, whatever there is. Update asks it.
	Unserved func(model.PortID) bool
	// Failed, unless nil, is called when a port cannot be served: once, until it
	// could be.
	Failed func(svc model.ServiceName, port uint16, err error)
	Log    *slog.Logger
}

// checkKey names a check: each family has a listener and a count of its own.
type checkKey struct {
	service model.ServiceName
	family  model.Family
}

// wanted is the desired state of a check.
type wanted struct {
	port  uint16
	refs  int          // ports of the Service that ask for it
	local atomic.Int64 // LocalReady
}

// The pauses between attempts to bind a port.
const (
	firstBind = time.Second
	lastBind  = time.Minute
)

// NewChecks returns checks that listen while Run does.
func NewChecks(o ChecksOptions) *Checks {
	c := &Checks{
		o: o, limiter: connLimiter{max: maxConns}, wake: make(chan struct{}, 1),
		wanted: map[checkKey]*wanted{}, dirty: map[checkKey]bool{},
		open: map[checkKey]*check{}, failing: map[checkKey]*failure{},
	}
	c.serve = newServer(http.HandlerFunc(c.answer), o.Log)
	return c
}

// Update takes changes that are in effect: the Old of each is the New of an
// earlier one. Its cost is that of the changes; it never blocks.
func (c *Checks) Update(host *model.Host, deltas []model.Delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range deltas {
		c.apply(d)
	}
	if c.host == nil || c.host != host && !slices.Equal(c.host.NodePorts.Prefixes, host.NodePorts.Prefixes) {
		for key := range c.wanted {
			c.dirty[key] = true
		}
	}
	c.host = host
	if len(c.dirty) > 0 {
		select {
		case c.wake <- struct{}{}:
		default: // a token is there already
		}
	}
}

func (c *Checks) apply(d model.Delta) {
	was, is := d.Old != nil && d.Old.HealthPort != 0, d.New != nil && d.New.HealthPort != 0
	if !was && !is {
		return
	}
	id := d.ID()
	key := checkKey{id.Service, id.Family}
	w := c.wanted[key]
	if w == nil {
		w = &wanted{}
		c.wanted[key] = w
	}
	if was {
		w.refs--
	}
	if is {
		w.refs++
		w.local.Store(int64(c.local(d.New)))
		if w.port != d.New.HealthPort {
			w.port = d.New.HealthPort
			c.dirty[key] = true
		}
	}
	if w.refs <= 0 {
		delete(c.wanted, key)
		c.dirty[key] = true
	}
}

// local counts the endpoints of this node that a load balancer can reach.
func (c *Checks) local(p *model.Port) int {
	if c.o.Unserved != nil && c.o.Unserved(p.ID) {
		return 0
	}
	return p.LocalReady
}

// Run listens until ctx ends.
func (c *Checks) Run(ctx context.Context) error {
	retry := time.NewTimer(0)
	defer retry.Stop()
	defer c.shutdown()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-retry.C:
		}
		c.reconcile(ctx)
		if next, any := c.nextRetry(); any {
			retry.Reset(time.Until(next))
		}
	}
}

func (c *Checks) shutdown() {
	for key := range c.open {
		c.closeCheck(key)
	}
	_ = c.serve.Close()
	c.group.Wait()
}

// task is a check that Run has to reconcile, in its desired state; its wanted is
// nil when it is to be closed.
type task struct {
	key    checkKey
	wanted *wanted
	port   uint16
	binds  []netip.Addr
	within []netip.Prefix
}

// tasks takes what is dirty, and what is due after a failure.
func (c *Checks) tasks(now time.Time) (all []task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, f := range c.failing {
		if !now.Before(f.next) {
			c.dirty[key] = true
		}
	}
	for key := range c.dirty {
		t := task{key: key, wanted: c.wanted[key]}
		if t.wanted != nil {
			t.port = t.wanted.port
			t.binds, t.within = bindAddresses(c.host, key.family)
		}
		all = append(all, t)
	}
	clear(c.dirty)
	return all
}

// reconcile closes what is wanted no more, or otherwise, and then opens what is
// new: a port may go from one Service to another.
func (c *Checks) reconcile(ctx context.Context) {
	all := c.tasks(time.Now())
	freed := map[uint16]bool{}
	for _, t := range all {
		if old := c.open[t.key]; old != nil && !old.fits(t) {
			freed[old.port] = true
			c.closeCheck(t.key)
		}
		if f := c.failing[t.key]; f != nil && (t.wanted == nil || f.port != t.port) {
			delete(c.failing, t.key)
		}
	}
	for _, t := range all {
		if t.wanted != nil && c.open[t.key] == nil {
			c.start(ctx, t)
		}
	}
	for _, f := range c.failing {
		if freed[f.port] {
			f.next = time.Now()
		}
	}
}
