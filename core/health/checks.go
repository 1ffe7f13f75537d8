// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
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
	ended  map[*check]error // whose listener has failed since

	// Owned by Run:
	open    map[checkKey]*check
	failing map[checkKey]*failure
	group   sync.WaitGroup
}

// ChecksOptions are what Checks need.
type ChecksOptions struct {
	Listen  Listen      // nil for the usual
	Healthy func() bool // the proxy; part of every answer
	// Unserved, unless nil, reports ports whose load balancer IPs are not programmed:
	// their checks answer that there are no endpoints. Update calls it.
	Unserved func(model.PortID) bool
	// Failed, unless nil, is called when a port cannot be bound or listened on any more,
	// once until that succeeds.
	Failed func(svc model.ServiceName, port uint16, err error)
	Log    *slog.Logger
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
		wanted: map[checkKey]*wanted{}, dirty: map[checkKey]bool{}, ended: map[*check]error{},
		open: map[checkKey]*check{}, failing: map[checkKey]*failure{},
	}
	c.serve = newServer(http.HandlerFunc(c.answer), o.Log)
	return c
}

// Update applies changes that are in effect: the Old of each is the New of an earlier
// one. Gaps names ports that have not changed, and of which Unserved may answer
// otherwise. Its cost is that of both; it never blocks.
func (c *Checks) Update(host *model.Host, deltas []model.Delta, gaps []model.PortID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := map[checkKey]*wanted{}
	for _, d := range deltas {
		c.apply(d, changed)
	}
	for _, id := range gaps {
		key := checkKey{id.Service, id.Family}
		if w := c.wanted[key]; w != nil {
			changed[key] = w
		}
	}
	for _, w := range changed {
		w.local.Store(c.local(w))
	}
	if c.host == nil || c.host != host && !slices.Equal(c.host.NodePorts.Prefixes, host.NodePorts.Prefixes) {
		for key := range c.wanted {
			c.dirty[key] = true
		}
	}
	c.host = host
	if len(c.dirty) > 0 {
		c.notify()
	}
}

// notify has Run reconcile.
func (c *Checks) notify() {
	select {
	case c.wake <- struct{}{}:
	default: // a token is there already
	}
}

// apply applies a change, and adds the check whose count may be another one to changed.
func (c *Checks) apply(d model.Delta, changed map[checkKey]*wanted) {
	was, is := d.Old != nil && d.Old.HealthPort != 0, d.New != nil && d.New.HealthPort != 0
	if !was && !is {
		return
	}
	id := d.ID()
	key := checkKey{id.Service, id.Family}
	w := c.wanted[key]
	if w == nil {
		w = &wanted{ports: map[model.PortID]struct{}{}}
		c.wanted[key] = w
	}
	changed[key] = w
	if !is {
		if delete(w.ports, id); len(w.ports) == 0 {
			delete(c.wanted, key)
			c.dirty[key] = true
		}
		return
	}
	w.ports[id] = struct{}{}
	w.ready = d.New.LocalReady
	if w.port != d.New.HealthPort {
		w.port = d.New.HealthPort
		c.dirty[key] = true
	}
}

// local counts the endpoints of this node that a load balancer can reach: none where it
// does not reach one of the Service's ports.
func (c *Checks) local(w *wanted) int64 {
	if c.o.Unserved != nil {
		for id := range w.ports {
			if c.o.Unserved(id) {
				return 0
			}
		}
	}
	return int64(w.ready)
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
		c.dropEnded()
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

// tasks returns the dirty checks, and failed ones that are due.
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

// reconcile closes checks that are not wanted or have changed, and then opens new
// ones: a port may move from one Service to another.
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

// failure is a check that could not be opened, or ended by itself.
type failure struct {
	port uint16
	wait time.Duration
	next time.Time
}

// start opens a check, or schedules a retry.
func (c *Checks) start(ctx context.Context, t task) {
	f := c.failing[t.key]
	k := &check{key: t.key, wanted: t.wanted, port: t.port, binds: t.binds, within: t.within, pause: firstBind, since: time.Now()}
	if f != nil {
		k.pause = f.wait
	}
	if err := c.bind(ctx, k); err != nil {
		c.fail(k, c.explain(k, err))
		return
	}
	c.open[t.key] = k
	if f != nil {
		c.o.Log.Info("healthCheckNodePort bound again", "service", t.key.service.String(), "port", t.port)
		delete(c.failing, t.key)
	}
}

// dropEnded closes the checks whose listener has failed, and schedules a retry. One that
// fails again soon waits longer, like one that cannot be bound.
func (c *Checks) dropEnded() {
	c.mu.Lock()
	ended := c.ended
	c.ended = map[*check]error{}
	c.mu.Unlock()
	for k, err := range ended {
		if c.open[k.key] != k {
			continue // it was closed meanwhile
		}
		c.closeCheck(k.key)
		if time.Since(k.since) > lastBind {
			k.pause = firstBind
		}
		c.fail(k, err)
	}
}

// fail reports a check that does not work, once until it does, and schedules a retry.
func (c *Checks) fail(k *check, err error) {
	f := c.failing[k.key]
	if f == nil {
		f = &failure{port: k.port, wait: k.pause}
		c.failing[k.key] = f
		c.o.Log.Warn("listening on healthCheckNodePort failed; retrying",
			"service", k.key.service.String(), "port", k.port, "family", k.key.family.String(), "err", err)
		if c.o.Failed != nil {
			c.o.Failed(k.key.service, k.port, err)
		}
	}
	f.next = time.Now().Add(f.wait)
	f.wait = sleep.Longer(f.wait, firstBind, lastBind)
}

// bind opens the listeners of a check, all or none.
func (c *Checks) bind(ctx context.Context, k *check) error {
	listen := c.o.Listen
	if listen == nil {
		listen = new(net.ListenConfig).Listen
	}
	network := [...]string{model.IPv4: "tcp4", model.IPv6: "tcp6"}[k.key.family]
	for _, ip := range k.binds {
		l, err := listen(ctx, network, netip.AddrPortFrom(ip, k.port).String())
		if err != nil {
			k.close()
			return err
		}
		k.listeners = append(k.listeners, l)
	}
	for _, l := range k.listeners {
		c.group.Go(func() {
			err := c.serve.Serve(limitedListener{Listener: l, limiter: &c.limiter, owner: k, admit: k.admits})
			if errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) {
				return
			}
			c.mu.Lock()
			c.ended[k] = err
			c.mu.Unlock()
			c.notify()
		})
	}
	return nil
}

// explain adds the Service that uses the port already, if any.
func (c *Checks) explain(k *check, err error) error {
	for key, other := range c.open {
		if key.family == k.key.family && other.port == k.port {
			return fmt.Errorf("%w: it is the healthCheckNodePort of Service %s", err, key.service)
		}
	}
	return err
}

// closeCheck closes a check with its connections.
func (c *Checks) closeCheck(key checkKey) {
	k := c.open[key]
	delete(c.open, key)
	k.close()
	c.limiter.closeAll(k)
}

// nextRetry returns when the next failure is due.
func (c *Checks) nextRetry() (next time.Time, any bool) {
	for _, f := range c.failing {
		if !any || f.next.Before(next) {
			next, any = f.next, true
		}
	}
	return next, any
}

// serviceAnswer is kube-proxy's document of a check.
type serviceAnswer struct {
	Service             serviceName `json:"service"`
	LocalEndpoints      int64       `json:"localEndpoints"`
	ServiceProxyHealthy bool        `json:"serviceProxyHealthy"`
}

type serviceName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// answer serves a check on any path.
func (c *Checks) answer(w http.ResponseWriter, r *http.Request) {
	k, ok := ownerOf(r).(*check)
	if !ok {
		http.Error(w, "no Service on this address", http.StatusNotFound)
		return
	}
	local, healthy := k.wanted.local.Load(), c.o.Healthy()
	w.Header().Set("Connection", "close") // a probe is one request
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(local, 10))
	code := http.StatusServiceUnavailable
	if local > 0 && healthy {
		code = http.StatusOK
	}
	name := k.key.service
	writeIndented(w, code, serviceAnswer{serviceName{name.Namespace, name.Name}, local, healthy})
}

// checkKey names a check: each family has a listener and a count of its own.
type checkKey struct {
	service model.ServiceName
	family  model.Family
}

// wanted is the desired state of a check.
type wanted struct {
	port  uint16
	ports map[model.PortID]struct{} // of the Service, that ask for it
	ready int                       // their LocalReady, which is one for all
	local atomic.Int64              // what is answered
}

// task is a check that Run has to reconcile; wanted is nil if it is to be closed.
type task struct {
	key    checkKey
	wanted *wanted
	port   uint16
	binds  []netip.Addr
	within []netip.Prefix
}

// check is one that is served.
type check struct {
	key       checkKey
	wanted    *wanted
	port      uint16
	binds     []netip.Addr
	within    []netip.Prefix
	listeners []net.Listener

	since time.Time     // when it was opened
	pause time.Duration // before the next attempt, if it fails
}

func (k *check) fits(t task) bool {
	return t.wanted == k.wanted && t.port == k.port && slices.Equal(t.binds, k.binds) && slices.Equal(t.within, k.within)
}

// bindAddresses returns the addresses to bind for a family's checks: those that node
// ports answer on. Single addresses are bound as given. For prefixes all addresses
// are bound and connections to those outside of within are reset, since the node's
// addresses change. within is nil for all.
func bindAddresses(host *model.Host, family model.Family) (binds []netip.Addr, within []netip.Prefix) {
	const most = 8 // listeners of one check
	for _, p := range host.NodePorts.Prefixes {
		if model.FamilyOf(p.Addr()) != family {
			continue
		}
		if p.Bits() == 0 {
			return []netip.Addr{family.Unspecified()}, nil
		}
		within = append(within, p)
		if p.IsSingleIP() {
			binds = append(binds, p.Addr())
		}
	}
	if len(binds) < len(within) || len(binds) > most {
		binds = []netip.Addr{family.Unspecified()}
	}
	return binds, within
}

// admits reports whether a check answers on the address that a client asks.
func (k *check) admits(c net.Conn) bool {
	if k.within == nil {
		return true
	}
	at, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	ip := at.AddrPort().Addr().Unmap()
	return model.Contains(k.within, ip)
}

func (k *check) close() {
	for _, l := range k.listeners {
		_ = l.Close()
	}
}
