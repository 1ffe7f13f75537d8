// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// Driver applies objects to HNS (dataplane.Driver).
type Driver struct {
	dataplane.SimpleDriver[Key, Value]
	calls    *calls
	settings Settings
	journal  *journal
	known    *inventory
	doubt    atomic.Bool   // HNS may differ from known: a reading is needed
	instance atomic.Uint32 // process of HNS at the last check; 0 while it does not run
	failures failures

	// Owned by Disturbed:
	routed time.Time // last reading of the network for unrouted endpoints

	// Owned by Observe, which runs once at a time:
	states rotation

	// Owned by Commit:
	listed pace // of listings of load balancers
	modify bool // load balancers can be changed in place
	echoed bool // it was logged that HNS returns other settings than requested
}

var (
	_ dataplane.Driver[Key, Value]   = (*Driver)(nil)
	_ dataplane.Compiler[Key, Value] = (*Compiler)(nil)
)

// NewDriver returns a driver of an HNS of this version, which it owns: Close closes it. On an
// error the HNS stays open.
func NewDriver(h HNS, v Version, s Settings) (*Driver, error) {
	if err := v.usable(); err != nil {
		return nil, err
	}
	j, err := openJournal(s.Journal, s.Folder)
	if err != nil {
		return nil, err
	}
	return newDriver(h, v, s, j), nil
}

func newDriver(h HNS, v Version, s Settings, j *journal) *Driver {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	d := &Driver{
		calls:    newCalls(h, s.Log),
		settings: s, journal: j, known: newInventory(j, s),
		modify: v.Features().Modify,
	}
	d.known.facts.askSource = !v.Features().DefaultSource
	for _, f := range model.Families() {
		d.setNode(f, j.node(f))
	}
	return d
}

// readLimit bounds a reading of HNS: 10,000 objects at 43 ms (kubernetes#109124)
// take seven minutes. Each call has a watchdog of its own.
const readLimit = time.Hour

// Limits: HNS has no transactions.
func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{Read: readLimit} }

// Disturbed reports whether HNS was restarted, after which load balancers are known
// to be missing (kubernetes#110849), Doubt was called, or the overlay now names another node for
// an endpoint in use. It calls HNS for the last only, when routesDue.
func (d *Driver) Disturbed(ctx context.Context) (bool, error) {
	if d.settings.Instance != nil {
		// A service that is down or cannot be queried is no change; one that was down and runs
		// again is, even in the same process.
		if now, err := d.settings.Instance(); err == nil && d.instance.Swap(now) != now && now != 0 {
			d.doubt.Store(true)
		}
	}
	if !d.doubt.Load() && d.known.routesDue(d.routed) {
		d.routed = time.Now()
		d.seekRoutes(ctx)
	}
	return d.doubt.Load(), nil
}

// routeLimit bounds the reading of the network in Disturbed, which delays changes.
const routeLimit = time.Second

// seekRoutes reads the network again for unrouted endpoints. Errors are ignored: it is
// repeated.
func (d *Driver) seekRoutes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, routeLimit)
	defer cancel()
	n, err := d.network(ctx)
	if err != nil {
		return
	}
	d.known.mu.Lock()
	defer d.known.mu.Unlock()
	if n.id != d.known.facts.network.id || d.known.route(n) {
		d.Doubt()
	}
}

// Doubt requests a reading of HNS. It may be called from any goroutine.
func (d *Driver) Doubt() { d.doubt.Store(true) }

// Close closes HNS and the journal. Programmed objects stay.
func (d *Driver) Close() error {
	var err error
	if !d.calls.busy() { // else it may wait for a call that hangs
		err = d.calls.hns.Close()
	}
	return errors.Join(err, d.journal.close())
}

// setNode sets this node's own address of a family.
func (d *Driver) setNode(f model.Family, a netip.Addr) {
	d.known.mu.Lock()
	defer d.known.mu.Unlock()
	d.known.facts.node[f] = a
	if f == model.IPv4 {
		d.known.facts.hostMAC = ""
		d.findMAC()
	}
}

// seekMAC looks for the MAC address of this node, unless it is known. When an overlay
// is created, the node's address moves to another interface, and for some seconds no
// interface has it.
func (d *Driver) seekMAC() {
	d.known.mu.Lock()
	defer d.known.mu.Unlock()
	d.findMAC()
}

// findMAC is seekMAC for callers that hold the inventory's lock.
func (d *Driver) findMAC() {
	f := &d.known.facts
	a := f.node[model.IPv4]
	if f.hostMAC != "" || !a.IsValid() || d.settings.MAC == nil {
		return
	}
	mac, err := d.settings.MAC(a)
	if err != nil {
		d.settings.Log.Warn("finding the MAC address of the node failed", "address", a, "err", err)
	}
	f.hostMAC = mac
}

// Observe reads HNS and passes on all owned objects, and those that are never wanted.
func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	if err := d.observe(ctx); err != nil {
		return err
	}
	for k, v := range d.known.objects() {
		found(k, v)
	}
	return nil
}

func (d *Driver) observe(ctx context.Context) error {
	d.states.begin(d.doubt.Swap(false))
	if d.settings.Instance != nil {
		if now, err := d.settings.Instance(); err == nil {
			d.instance.Store(now)
		}
	}
	err := d.read(ctx, d.known.begin())
	d.written(d.known.end(err != nil))
	if err != nil {
		d.doubt.Store(true)
		return fmt.Errorf("HNS: %w", err)
	}
	return nil
}

// read reads the network, its endpoints and all load balancers. Known remote endpoints are
// read again in turn (rotation).
func (d *Driver) read(ctx context.Context, r *reading) (err error) {
	if r.network, err = d.network(ctx); err != nil {
		return err
	}
	if r.endpoints, err = d.endpoints(ctx, r.network.id, d.states.again); err != nil {
		return err
	}
	d.states.end()
	if r.network.overlay {
		d.seekMAC()
		r.sourceVIP, r.chosenVIP = d.settings.sourceVIP(r.endpoints)
	}
	r.balancers, err = d.balancers(ctx)
	return err
}

func (d *Driver) network(ctx context.Context) (network, error) {
	all, err := d.calls.networks(ctx)
	if err != nil {
		return network{}, err
	}
	n, err := FindNetwork(all, d.settings.Network)
	return describe(n), err
}

// endpoints returns the endpoints of a network. It lists their ids, and reads those that are
// not known yet or that again selects; a nil again selects none.
func (d *Driver) endpoints(ctx context.Context, network string, again func(Endpoint) bool) ([]Endpoint, error) {
	return readAll(func() ([]string, error) { return d.calls.endpointIDs(ctx, network) }, func(id string) (Endpoint, error) {
		if e, ok := d.known.endpoint(id); ok && (again == nil || !again(e)) {
			return e, nil
		}
		return d.calls.endpoint(ctx, id)
	})
}

// balancers reads all load balancers. Those that are still as HNS returned them when they
// were programmed are as they were requested.
func (d *Driver) balancers(ctx context.Context) ([]LoadBalancer, error) {
	return readAll(func() ([]string, error) { return d.calls.balancerIDs(ctx) }, func(id string) (LoadBalancer, error) {
		lb, err := d.calls.balancer(ctx, id)
		return d.journal.requested(lb), err
	})
}

// readTries is how often an object that is listed and not found is read.
const readTries = 3

// readAll reads all objects of a list. Objects come and go meanwhile: one that is not
// found counts as absent only if a later list lacks it, too; else the reading fails.
func readAll[T any](list func() ([]string, error), read func(id string) (T, error)) (all []T, err error) {
	ids, err := list()
	if err != nil {
		return nil, err
	}
	var missing error
	for range readTries {
		var lost []string
		for _, id := range ids {
			v, err := read(id)
			switch {
			case notFound(err):
				lost, missing = append(lost, id), err
			case err != nil:
				return nil, err
			default:
				all = append(all, v)
			}
		}
		if len(lost) == 0 {
			return all, nil
		}
		now, err := list()
		if err != nil {
			return nil, err
		}
		ids = slices.DeleteFunc(lost, func(id string) bool { return !slices.Contains(now, id) })
	}
	if len(ids) > 0 {
		return nil, fmt.Errorf("an object is listed but not found: %w", missing)
	}
	return all, nil
}

// pace limits a slow operation to a share of the time, across Commits and audits: the
// Commits of a cold start follow one another without a pause.
type pace struct {
	ended time.Time
	took  time.Duration
}

// paceShare: an operation that took t is due again t*paceShare after its end.
const paceShare = 10

func (p pace) due() bool { return time.Since(p.ended) >= paceShare*p.took }

// done notes the end of a run that began at a time.
func (p *pace) done(begun time.Time) { p.ended, p.took = time.Now(), time.Since(begun) }

// statesTime bounds the time in which a reading reads states of remote endpoints. On a slow
// node each reading gets to some of them, in turn.
const statesTime = time.Minute

// rotation chooses the known endpoints that a reading reads again, for their states.
type rotation struct {
	pace  pace
	begun time.Time       // zero: this reading reads no remote ones
	read  map[string]bool // remote ones read in this turn, by id
	cut   bool            // statesTime ended before all were read
}

// begin begins a reading. One on suspicion reads no remote ones: it is to find missing
// objects soon.
func (r *rotation) begin(suspicion bool) {
	r.begun = time.Time{}
	if suspicion || !r.pace.due() {
		return
	}
	if !r.cut {
		r.read = map[string]bool{}
	}
	r.begun, r.cut = time.Now(), false
}

// again reports whether a known endpoint is read again: local ones always, remote ones
// once in a turn while there is time.
func (r *rotation) again(e Endpoint) bool {
	switch {
	case !e.remote():
		return true
	case r.begun.IsZero(), r.read[e.ID]:
		return false
	case time.Since(r.begun) > statesTime:
		r.cut = true
		return false
	}
	r.read[e.ID] = true
	return true
}

// end notes that a reading has succeeded.
func (r *rotation) end() {
	if !r.begun.IsZero() {
		r.pace.done(r.begun)
	}
}

// Problems returns the objects without effect, and the ports that load balancers reserve.
func (d *Driver) Problems() []model.Problem { return d.known.problems() }

// commit is one run of Commit, or of Remove. What HNS must be read for is read at most
// once.
type commit struct {
	*Driver
	ctx       context.Context // of reads
	lasting   context.Context // of writes: ctx, and the time to finish
	refreshed bool            // endpoints were listed
	rerouted  bool            // the network was read
	relisted  bool            // load balancers were listed
	sought    bool            // the node's MAC address was looked for
	taken     []string        // adopted load balancers that the journal did not have: frontend and id
}

// begin begins a run. The caller calls release at its end.
func (d *Driver) begin(ctx context.Context) (c *commit, release func()) {
	lasting, release := outlasting(ctx, finishing)
	return &commit{Driver: d, ctx: ctx, lasting: lasting}, release
}

// adopt makes the load balancer of a frontend owned, whoever created it.
func (c *commit) adopt(k Key, id string) {
	if !c.journal.owns(id) {
		c.taken = append(c.taken, k.String()+" "+id)
	}
	c.written(c.journal.add(id))
}

// maxNamed is how many adopted load balancers of a Commit are logged by name.
const maxNamed = 20

// logAdopted logs the load balancers adopted in this run, of other programs or of a lost
// journal: from now on Tandem changes and deletes them.
func (c *commit) logAdopted() {
	if n := len(c.taken); n > 0 {
		c.settings.Log.Info("adopted load balancers that the journal does not list", "count", n, "balancers", c.taken[:min(n, maxNamed)])
	}
}

// written logs an error of writing the journal. The entry is kept in memory, and the next
// write that succeeds includes it.
func (d *Driver) written(err error) {
	if err != nil {
		d.settings.Log.Error("writing the journal of load balancers failed", "err", err)
	}
}

// The times after which a call is reported, and abandoned.
const (
	slow    = 10 * time.Second
	tooSlow = 2 * time.Minute
)

// finishing is how long the current op may still write after its context has ended: what
// HNS creates gets into the journal, and a frontend whose load balancer was deleted gets the
// new one. Windows gives a program longer to end: 5 s after CTRL_CLOSE_EVENT
// (HandlerRoutine), 10 s before a shutdown (SERVICE_PRESHUTDOWN_INFO).
const finishing = 4 * time.Second

// outlasting returns a context that ends d after ctx, or when it is released.
func outlasting(ctx context.Context, d time.Duration) (longer context.Context, release func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep.For(longer, d)
		cancel()
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// calls makes bounded calls to HNS. A call cannot be cancelled, and HNS is known
// to hang (aks-engine#4315): each runs on a goroutine of its own, which when abandoned
// remains until HNS returns. While an abandoned write, or a read that timed out, has not returned, all other
// calls fail: there is never a second writer. A read whose context has ended blocks reads only.
//
// HNS returns ids in any case; calls returns them in lower case.
type calls struct {
	hns     HNS
	log     *slog.Logger
	slow    time.Duration
	tooSlow time.Duration
	hung    atomic.Int32 // abandoned writes and timed-out reads that have not returned
	left    atomic.Int32 // reads whose context has ended, and that have not returned
}

// newCalls returns the calls of an HNS. A nil log discards.
func newCalls(h HNS, log *slog.Logger) *calls {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &calls{hns: h, log: log, slow: slow, tooSlow: tooSlow}
}

const (
	running int32 = iota
	returned
	abandoned
)

// do makes a call that only reads.
func do[T any](ctx context.Context, c *calls, what string, f func(HNS) (T, error)) (result T, err error) {
	return bounded(ctx, c, &c.left, what, f)
}

// write makes a call that changes HNS.
func write[T any](ctx context.Context, c *calls, what string, f func(HNS) (T, error)) (result T, err error) {
	return bounded(ctx, c, &c.hung, what, f)
}

// bounded makes one call. It abandons the call when ctx ends, counted in ended until it
// returns, and after tooSlow, counted in hung.
func bounded[T any](ctx context.Context, c *calls, ended *atomic.Int32, what string, f func(HNS) (T, error)) (
	result T, err error,
) {
	if err := ctx.Err(); err != nil {
		return result, err
	}
	if c.hung.Load() > 0 || ended.Load() > 0 {
		return result, fmt.Errorf("%s: an earlier HNS call has not returned: %w", what, ledger.ErrUnknown)
	}
	type answer struct {
		value T
		err   error
	}
	var state atomic.Int32
	var counted *atomic.Int32 // the counter of an abandoned call
	done := make(chan answer, 1)
	begun := time.Now()
	go func() {
		v, err := f(c.hns)
		done <- answer{v, err}
		if !state.CompareAndSwap(running, returned) {
			counted.Add(-1)
			c.log.Info("late HNS call returned", "call", what)
		}
	}()
	report, end := time.NewTimer(c.slow), time.NewTimer(c.tooSlow)
	defer report.Stop()
	defer end.Stop()
	for {
		counted = &c.hung
		select {
		case a := <-done:
			c.log.Debug("HNS call", "call", what, "ms", time.Since(begun).Milliseconds(), "err", a.err)
			return a.value, unknown(a.err)
		case <-report.C:
			c.log.Warn("HNS call is slow", "call", what, "after", c.slow)
			continue
		case <-ctx.Done():
			counted = ended
			err = fmt.Errorf("%s: %w", what, ctx.Err())
		case <-end.C:
			err = fmt.Errorf("%s: no answer within %s", what, c.tooSlow)
			c.log.Error("HNS call timed out", "call", what, "after", c.tooSlow)
		}
		counted.Add(1)
		if state.CompareAndSwap(running, abandoned) {
			return result, fmt.Errorf("%w: %w", err, ledger.ErrUnknown)
		}
		counted.Add(-1)
	}
}

// busy reports whether an abandoned call has not returned.
func (c *calls) busy() bool { return c.hung.Load() > 0 || c.left.Load() > 0 }

// run is write for a call without a result.
func run(ctx context.Context, c *calls, what string, f func(HNS) error) error {
	_, err := write(ctx, c, what, func(h HNS) (struct{}, error) { return struct{}{}, f(h) })
	return err
}

func (c *calls) networks(ctx context.Context) ([]Network, error) {
	return do(ctx, c, "list networks", HNS.Networks)
}

func (c *calls) list(ctx context.Context, what string, f func(HNS) ([]string, error)) ([]string, error) {
	ids, err := do(ctx, c, what, f)
	for i := range ids {
		ids[i] = strings.ToLower(ids[i])
	}
	return ids, err
}

func (c *calls) endpointIDs(ctx context.Context, network string) ([]string, error) {
	return c.list(ctx, "list endpoints", func(h HNS) ([]string, error) { return h.EndpointIDs(network) })
}

func (c *calls) endpoint(ctx context.Context, id string) (Endpoint, error) {
	e, err := do(ctx, c, "read endpoint "+id, func(h HNS) (Endpoint, error) { return h.Endpoint(id) })
	e.ID = strings.ToLower(e.ID)
	return e, err
}

func (c *calls) createEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	e, err := write(ctx, c, "create endpoint "+e.Name, func(h HNS) (Endpoint, error) { return h.CreateEndpoint(e) })
	e.ID = strings.ToLower(e.ID)
	return e, err
}

func (c *calls) deleteEndpoint(ctx context.Context, id string) error {
	return run(ctx, c, "delete endpoint "+id, func(h HNS) error { return h.DeleteEndpoint(id) })
}

func (c *calls) balancerIDs(ctx context.Context) ([]string, error) {
	return c.list(ctx, "list load balancers", HNS.BalancerIDs)
}

func (c *calls) balancer(ctx context.Context, id string) (LoadBalancer, error) {
	lb, err := do(ctx, c, "read load balancer "+id, func(h HNS) (LoadBalancer, error) { return h.Balancer(id) })
	return lower(lb), err
}

func (c *calls) createBalancer(ctx context.Context, k Key, lb LoadBalancer) (LoadBalancer, error) {
	lb, err := write(ctx, c, "create "+k.String(), func(h HNS) (LoadBalancer, error) { return h.CreateBalancer(lb) })
	return lower(lb), err
}

func (c *calls) modifyBalancer(ctx context.Context, k Key, id string, to LoadBalancer) (LoadBalancer, error) {
	lb, err := write(ctx, c, "modify "+k.String(), func(h HNS) (LoadBalancer, error) { return h.ModifyBalancer(id, to) })
	return lower(lb), err
}

func (c *calls) deleteBalancer(ctx context.Context, k Key, id string) error {
	return run(ctx, c, "delete "+k.String(), func(h HNS) error { return h.DeleteBalancer(id) })
}

func lower(lb LoadBalancer) LoadBalancer {
	lb.ID = strings.ToLower(lb.ID)
	for i, id := range lb.HostComputeEndpoints {
		lb.HostComputeEndpoints[i] = strings.ToLower(id)
	}
	return lb
}
