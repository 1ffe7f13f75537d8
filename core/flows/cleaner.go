// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// Table is a table of tracked flows. It is used by one goroutine at a time.
type Table interface {
	// Delete deletes stale flows and returns how many it deleted, also when it fails
	// half-way. The matches say where to look, and stale, which is safe for concurrent
	// use, decides about each flow when it is seen: what the matches say may have been
	// corrected since. It can be called again with the same matches.
	Delete(ctx context.Context, matches []Match, stale func(Flow) bool) (deleted int, err error)
}

// Report is the result of one call of Table.Delete, for one IP family.
type Report struct {
	Family    model.Family
	Frontends int // how many frontends it was about
	Deleted   int // flows
	Took      time.Duration
	Err       error         // nil when done
	Retry     time.Duration // after a failure: the pause before the next attempt
}

// Hooks are called by the Cleaner, on its goroutine and others. Each may be nil; they
// must not block.
type Hooks struct {
	Cleaned func(Report) // after each attempt, on the Cleaner's goroutine
	// Dropped is called when matches of a namespace, which has the most, were dropped because
	// the queue is full.
	Dropped func(namespace string, matches int)
	// Account begins to count the processor's time that the calling goroutine takes until its result is called. It is
	// what the budget counts: on a busy machine a look takes long because it waits for a processor, and then flows must
	// not wait for that, too. Where it is nil the clock counts.
	Account func() (spent func() time.Duration)
}

const (
	// maxFrontends bounds the queue while the table fails. It is more than all UDP
	// frontends of a large cluster; only continuous churn can fill it. Namespaces share the
	// places: those with fewer than an equal part keep theirs.
	maxFrontends = 1 << 16

	// A failed attempt is repeated after minPause, then after twice as long each
	// time, up to maxPause. New work is not kept waiting longer than minPause.
	minPause = 100 * time.Millisecond
	maxPause = 30 * time.Second
)

// Cleaner deletes stale flows on a goroutine of its own, so that changes of the rules
// never wait for it: walking a large table takes tens of milliseconds. Matches
// enqueued while it works are merged and handled right afterwards.
type Cleaner struct {
	stale func(*model.Host, []model.Delta) []Match
	grace time.Duration // before stale flows are looked for: some may get an answer
	spare budget
	took  time.Duration // by the table, since the last pause: see Hooks.Account
	table Table
	hooks Hooks
	stop  context.CancelFunc
	done  chan struct{}
	wake  chan struct{} // holds one token when there may be something waiting

	mu      sync.Mutex
	tenants map[string]*budget  // of namespaces that have spent lately
	askers  map[string]struct{} // namespaces of what waits
	served  map[string]struct{} // namespaces of what the table works on, or has since the last pause
	waiting *Index
	running *Index // what the table works on; its corrected matches return to waiting if it fails
}

// Start starts a Cleaner of what Stale finds, which runs until ctx is done or Close is
// called. The table stays the caller's.
func Start(ctx context.Context, table Table, hooks Hooks) *Cleaner {
	return start(ctx, &Cleaner{stale: Stale, table: table, hooks: hooks})
}

// Handshakes that were under way when their endpoint left get handshakeGrace to end, and one look serves all
// changes within it: more than a round trip inside a cluster, and well before a client repeats its SYN, after a second.
const handshakeGrace = 250 * time.Millisecond

// budget is the time that looking for stale flows may take: a 400th of all time, of which some can be
// saved up, so that a few changes are handled at once. The pause is capped at the larger of 5 s and
// leastPause.
type budget struct {
	saved time.Duration
	at    time.Time // when that was
}

const (
	budgetShare = 400
	mostSaved   = 100 * time.Millisecond
	longestWait = 5 * time.Second

	urgentShare = 100
	urgentWait  = time.Second
	leastShare  = 20
)

// leastPause follows an attempt that took so long, whoever waits: attempts take a hundredth of the time or, where
// that pause would be longer than urgentWait, more, but never more than a twentieth.
func leastPause(took time.Duration) time.Duration {
	return max((leastShare-1)*took, min((urgentShare-1)*took, urgentWait))
}

// spend takes the time that an attempt took until now, and returns how long the next one has to wait.
func (b *budget) spend(took time.Duration, now time.Time) time.Duration {
	b.spent(took, now)
	wait := min(-b.saved*budgetShare, max(longestWait, leastPause(took)))
	if wait <= 0 {
		return 0
	}
	b.saved = -wait / budgetShare // the rest of a debt is forgiven
	return wait
}

// spent charges a namespace for its part of an attempt; hasCredit reports whether credit is left. While the whole
// budget is used up, namespaces with credit are still served after leastPause: changes of one namespace do not delay
// the cleanup of another.
func (b *budget) spent(took time.Duration, now time.Time) {
	b.saved, b.at = b.savedBy(now)-took, now
}

func (b *budget) hasCredit(now time.Time) bool { return b.savedBy(now) > 0 }

func (b *budget) savedBy(now time.Time) time.Duration {
	if b.at.IsZero() {
		return mostSaved
	}
	return min(b.saved+now.Sub(b.at)/budgetShare, mostSaved)
}

// StartHandshakes starts a Cleaner of the flows that Handshakes returns.
func StartHandshakes(ctx context.Context, table Table, hooks Hooks) *Cleaner {
	return start(ctx, &Cleaner{stale: Handshakes, grace: handshakeGrace, table: table, hooks: hooks})
}

func start(ctx context.Context, c *Cleaner) *Cleaner {
	if c.hooks.Account == nil {
		c.hooks.Account = byClock
	}
	ctx, c.stop = context.WithCancel(ctx)
	c.done, c.wake = make(chan struct{}), make(chan struct{}, 1)
	c.waiting, c.running = &Index{}, &Index{}
	c.tenants, c.askers, c.served = map[string]*budget{}, map[string]struct{}{}, map[string]struct{}{}
	go c.run(ctx)
	return c
}

// Close stops the Cleaner, waits until the table is no longer in use, and returns the matches
// that are left.
func (c *Cleaner) Close() (left []Match) {
	c.stop()
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(slices.Clone(c.running.Matches()), c.waiting.Matches()...)
}

// Prepare announces changes that are about to be written: from then on there may be flows
// to their endpoints, which queued and running cleanups must keep. It never blocks.
func (c *Cleaner) Prepare(deltas []model.Delta) { c.correct(deltas, (*Index).alsoKeep) }

// Update enqueues what changes that are now in effect make stale, and corrects what
// waits or is at work about frontends whose endpoints have changed since. It never blocks.
func (c *Cleaner) Update(host *model.Host, deltas []model.Delta) {
	stale := c.stale(host, deltas)
	c.correct(deltas, (*Index).keepOnly)
	c.Enqueue(stale)
}

func (c *Cleaner) correct(deltas []model.Delta, correct func(*Index, *model.Port)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting.Len()+c.running.Len() == 0 {
		return
	}
	for _, d := range deltas {
		if d.New != nil {
			correct(c.waiting, d.New)
			correct(c.running, d.New)
		}
	}
}

// Enqueue adds matches to what waits. It never blocks.
func (c *Cleaner) Enqueue(stale []Match) {
	if len(stale) == 0 {
		return
	}
	c.mu.Lock()
	dropped := c.add(stale)
	c.mu.Unlock()
	c.reportDropped(dropped)
	c.awake()
}

func (c *Cleaner) awake() {
	select {
	case c.wake <- struct{}{}:
	default: // a token is there already
	}
}

// add returns how many matches of each namespace were dropped.
func (c *Cleaner) add(stale []Match) (dropped map[string]int) {
	for _, m := range stale {
		c.waiting.Add(m)
		c.askers[m.Namespace] = struct{}{}
	}
	return c.waiting.shrink(maxFrontends)
}

func (c *Cleaner) reportDropped(matches map[string]int) {
	if c.hooks.Dropped == nil {
		return
	}
	for namespace, n := range matches {
		c.hooks.Dropped(namespace, n)
	}
}

func (c *Cleaner) run(ctx context.Context) {
	defer close(c.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		sleep.For(ctx, c.grace)
		c.took = 0
		for pause := minPause; ctx.Err() == nil && c.clean(ctx, pause) != nil; pause = sleep.Longer(pause, minPause, maxPause) {
			c.backOff(ctx, pause)
		}
		now := time.Now()
		c.charge(now)
		c.rest(ctx, now, c.spare.spend(c.took, now))
	}
}

// charge shares the time since the last pause among the namespaces that it was for.
func (c *Cleaner) charge(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.served {
		if c.tenants[name] == nil {
			c.tenants[name] = &budget{}
		}
		c.tenants[name].spent(c.took/time.Duration(len(c.served)), now)
	}
	clear(c.served)
	for name, b := range c.tenants {
		if b.savedBy(now) == mostSaved {
			delete(c.tenants, name)
		}
	}
}

// rest waits for a while, or until something comes of a namespace that has not used up its share of the time.
func (c *Cleaner) rest(ctx context.Context, begin time.Time, pause time.Duration) {
	least := min(pause, leastPause(c.took))
	sleep.For(ctx, least)
	for left := pause - least; left > 0 && ctx.Err() == nil && !c.urgent(); left = pause - time.Since(begin) {
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-time.After(left):
		}
	}
	c.mu.Lock()
	more := c.waiting.Len() > 0
	c.mu.Unlock()
	if more {
		c.awake()
	}
}

// urgent reports whether something waits for a namespace that has not used up its share.
func (c *Cleaner) urgent() bool {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.askers {
		if b := c.tenants[name]; b == nil || b.hasCredit(now) {
			return true
		}
	}
	return false
}

// clean makes one attempt at everything that waits.
func (c *Cleaner) clean(ctx context.Context, pause time.Duration) error {
	stale := c.take()
	if len(stale) == 0 {
		return nil
	}
	var failed error
	for _, f := range model.Families() {
		if err := c.delete(ctx, f, ofFamily(stale, f), pause); err != nil {
			failed = err
		}
	}
	if failed == nil || ctx.Err() == nil { // else Close returns them
		c.finish(failed != nil)
	}
	return failed
}

// delete deletes the stale flows of one family and reports it. A table walks
// the families one by one anyway.
func (c *Cleaner) delete(ctx context.Context, f model.Family, stale []Match, pause time.Duration) error {
	if len(stale) == 0 {
		return nil
	}
	start, spent := time.Now(), c.hooks.Account()
	deleted, err := c.table.Delete(ctx, stale, c.staleNow)
	c.took += spent()
	r := Report{Family: f, Frontends: len(stale), Deleted: deleted, Took: time.Since(start), Err: err}
	if err != nil {
		r.Retry = pause
	}
	if c.hooks.Cleaned != nil && (err == nil || ctx.Err() == nil) { // to end in the middle is no failure
		c.hooks.Cleaned(r)
	}
	return err
}

// byClock is Hooks.Account by the clock.
func byClock() (spent func() time.Duration) {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

func ofFamily(all []Match, f model.Family) (some []Match) {
	for _, m := range all {
		if m.Family() == f {
			some = append(some, m)
		}
	}
	return some
}

// staleNow reports whether a flow is stale by what is at work, as corrected.
func (c *Cleaner) staleNow(f Flow) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running.Stale(f)
}

// take moves what waits to running and returns a copy of it, which a correction
// does not touch.
func (c *Cleaner) take() []Match {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.waiting = c.waiting, &Index{}
	if c.running.Len() > 0 {
		maps.Copy(c.served, c.askers)
		clear(c.askers)
	}
	return append([]Match(nil), c.running.Matches()...)
}

// finish drops the matches that ran or, after a failure, puts them back; later ones
// about the same frontends take precedence.
func (c *Cleaner) finish(again bool) {
	c.mu.Lock()
	var dropped map[string]int
	if again {
		newer := c.waiting.Matches()
		c.waiting = c.running
		dropped = c.add(newer)
	}
	c.running = &Index{}
	c.mu.Unlock()
	c.reportDropped(dropped)
}

// backOff waits before the next attempt. New work cuts the wait short, but not
// below minPause.
func (c *Cleaner) backOff(ctx context.Context, pause time.Duration) {
	sleep.For(ctx, minPause)
	select {
	case <-ctx.Done():
	case <-c.wake:
	case <-time.After(pause - minPause):
	}
}
