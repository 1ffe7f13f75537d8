// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// Hooks are callbacks for facts about the server. They may be nil, and must not block.
type Hooks struct {
	// Connected follows every new connection, with the addresses that the API
	// server has: those its name resolves to, and the one connected to. Sorted.
	Connected func([]netip.AddrPort)
	// Dial makes connections; nil is the network's.
	Dial Dialer
}

// Source follows an API server. Create one with Open, Run it once. Its other
// methods are safe for concurrent use at any time.
type Source struct {
	client    *Client
	nodeName  string
	limits    limits
	allowed   config.ExternalIPs
	external  *latch // there is an external IP that might be another node's
	followers []*follower
	reviews   rest.Interface
	uids      *uids
}

// Open prepares to follow the API server that a configuration names, and makes no
// connection yet: a server that is down is waited for. Errors are about the
// configuration and its files. ConfigSyncPeriod has no effect, since no objects are
// kept.
func Open(c *config.Config, log *slog.Logger, hooks Hooks) (*Source, error) {
	if c.NodeName == "" {
		return nil, errors.New("node name unknown; set --hostname-override")
	}
	from := processEnvironment()
	from.connected, from.dial = hooks.Connected, hooks.Dial
	client, err := from.connect(c.API)
	if err != nil {
		return nil, err
	}
	if kubeconfig := Path(c.API.Kubeconfig); c.API.Kubeconfig != "" && WorldWritable(kubeconfig) {
		log.Warn("kubeconfig is world-writable; run chmod o-w", "kubeconfig", kubeconfig)
	}
	s := &Source{client: client, nodeName: c.NodeName, limits: defaultLimits(), allowed: c.ExternalIPs, external: newLatch(), uids: &uids{of: map[model.Key]types.UID{}}}
	if s.reviews, err = client.rest(corev1.SchemeGroupVersion, flowcontrol.NewTokenBucketRateLimiter(reviewRate, reviewBurst)); err != nil {
		return nil, err
	}
	j := newFailureLog(log)
	lists, restored := make(chan struct{}, 1), &restores{}
	kinds := []kind{services(), endpointSlices(), ownNode(c.NodeName), serviceCIDRs(), otherNodes(c.NodeName)}
	if c.GatewayRoutes {
		kinds = append(kinds, routes()...)
	}
	for _, k := range kinds {
		var clients []rest.Interface
		for _, version := range append([]schema.GroupVersion{k.version}, k.fallbacks...) {
			one, err := client.rest(version, nil)
			if err != nil {
				return nil, err
			}
			clients = append(clients, one)
		}
		s.followers = append(s.followers, &follower{
			kind: k, clients: clients, codec: client.Codec(), decoders: client.decoders(), status: newResourceStatus(&k, j, client.Host()), lists: lists, uids: s.uids, restores: restored,
		})
	}
	return s, nil
}

// target is the sink that Run is given, which notes whether other Nodes matter.
type target struct {
	model.Sink
	source *Source
}

func (t *target) Set(o model.Object) {
	if s, is := o.(*model.Service); is && !t.source.allowed.Only && slices.ContainsFunc(s.ExternalIPs, func(ip netip.Addr) bool {
		return !model.Contains(t.source.allowed.Allowed, ip)
	}) {
		t.source.external.open()
	}
	t.Sink.Set(o)
}

// EventWriter returns what writes Events to the same server.
func (s *Source) EventWriter() (*EventWriter, error) {
	w, err := s.client.Events(s.nodeName)
	if err == nil {
		w.uids = s.uids
	}
	return w, err
}

// Run follows the API server until ctx ends, then it returns nil. Whatever
// happens to the server or the connection, it retries, and nothing that the
// sink has is removed because of it.
func (s *Source) Run(ctx context.Context, sink model.Sink) error {
	defer s.client.Close()
	d := newDispatcher(&target{sink, s}, s.nodeName, s.limits)
	var group sync.WaitGroup
	for _, f := range s.followers {
		f.dispatcher, f.limits = d, s.limits
		if f.optional {
			d.optional[f.key()] = newLatch()
		}
	}
	for _, f := range s.followers {
		group.Go(func() {
			if !f.others || s.needsOthers(ctx, d, f) {
				f.run(ctx)
			}
		})
	}
	group.Go(func() { d.run(ctx) })
	group.Wait()
	return nil
}

// needsOthers waits until the other Nodes matter: most clusters have no external IPs, and each Node changes every
// five minutes. A start does not wait for that, once all Services are known.
func (s *Source) needsOthers(ctx context.Context, d *dispatcher, f *follower) bool {
	select {
	case <-s.external.ch:
		return true
	case <-d.services.ch:
	case <-ctx.Done():
		return false
	}
	select {
	case <-s.external.ch: // the last of them may have one
		return true
	default:
		d.listed(&f.kind)
	}
	select {
	case <-s.external.ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// Resources returns the state of following each kind of objects.
func (s *Source) Resources() []Resource {
	var all []Resource
	for _, f := range s.followers {
		if f.others && !s.external.isOpen() {
			continue
		}
		all = append(all, f.status.resource())
	}
	return all
}

// Stale returns why the objects in the sink may be out of date, "" if they are not.
// Forwarding continues in any case. A reason appears within 90 s: see the package's
// documentation.
func (s *Source) Stale(now time.Time) []string {
	var reasons []string
	for _, r := range s.Resources() {
		if why := r.stale(now, s.limits.stale); why != "" {
			reasons = append(reasons, why)
		}
	}
	return reasons
}

// dispatcher receives the objects that followers read. It serializes the calls of the
// sink, collects the problems of all objects, and decides when to call Synced. It is
// safe for concurrent use.
type dispatcher struct {
	sink     model.Sink
	nodeName string
	limits   limits

	services, slices, node *latch
	optional               map[string]*latch // by resource; not changed once it runs
	changed                chan struct{}     // problems or rejected objects changed

	mu         sync.Mutex // also held during calls of the sink
	problems   problems
	rejected   map[model.Key]bool   // objects without any usable version
	own        *model.Node          // this machine's; nil while there is none
	nodeRead   bool                 // it is known whether there is one
	lastSynced *bool                // the last Synced; nil before the first
	unread     map[string]readiness // by resource: of all but Services and EndpointSlices
	lastUnread model.Unread         // as passed on
}

// readiness is what is known of a kind of objects that may come late.
type readiness uint8

const (
	expected  readiness = iota // nothing yet
	forbidden                  // the server refuses it, and not only while it starts
	read                       // complete, or the server has no such kind
)

// latch is a channel that is closed once.
type latch struct {
	once sync.Once
	ch   chan struct{}
}

func newLatch() *latch { return &latch{ch: make(chan struct{})} }

func (g *latch) open() { g.once.Do(func() { close(g.ch) }) }

func (g *latch) isOpen() bool {
	select {
	case <-g.ch:
		return true
	default:
		return false
	}
}

func newDispatcher(sink model.Sink, nodeName string, l limits) *dispatcher {
	return &dispatcher{
		sink: sink, nodeName: nodeName, limits: l,
		services: newLatch(), slices: newLatch(), node: newLatch(), optional: map[string]*latch{}, changed: make(chan struct{}, 1),
		rejected: map[model.Key]bool{}, unread: map[string]readiness{},
	}
}

// put passes an object to the sink, and returns whether the sink has it now and
// whether to remember its version. If nothing of an object is usable its last good
// version is kept.
func (d *dispatcher) put(k *kind, n name, o runtime.Object, before bool) (served, known bool) {
	meaning, problems := k.read(o) // a large object delays those of its kind alone
	d.mu.Lock()
	defer d.mu.Unlock()
	usable := meaning != nil
	if usable {
		d.sink.Set(meaning)
	}
	rejected := !usable && !k.moot && len(problems) > 0
	if before && !usable && !rejected { // no longer served, such as a Service that became headless
		d.sink.Delete(k.named(n))
	}
	served = usable || before && rejected
	d.note(k.keyOf(n), problems, rejected && !served)
	if own, is := meaning.(*model.Node); is && !k.others {
		if d.own == nil {
			d.nodeRead = true
			d.node.open()
			d.signal()
		}
		d.own = own
	}
	return served, served || len(problems) > 0
}

// drop removes an object from the sink.
func (d *dispatcher) drop(k *kind, n name, served bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	own := k.key() == "nodes"
	switch {
	case served && own:
		gone := *d.own
		gone.Leaving = true
		d.sink.Set(&gone)
	case served:
		d.sink.Delete(k.named(n))
	}
	d.note(k.keyOf(n), nil, false)
	if own {
		d.own = nil
		d.signal()
	}
}

// note replaces the problems of an object.
func (d *dispatcher) note(s model.Key, all []model.Problem, rejected bool) {
	if d.problems.has(s, all) && d.rejected[s] == rejected {
		return
	}
	d.problems.set(s, all)
	delete(d.rejected, s)
	if rejected {
		d.rejected[s] = true
	}
	d.signal()
}

func (d *dispatcher) signal() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// listed records that a kind of objects is complete, or that the server has no such kind.
func (d *dispatcher) listed(k *kind) {
	switch k.key() {
	case "services":
		d.services.open()
	case "endpointslices":
		d.slices.open()
	default:
		d.ready(k, read)
		d.proceedWithout(k)
	}
}

// proceedWithout has a start no longer wait for a kind that can be done without.
func (d *dispatcher) proceedWithout(k *kind) {
	if g := d.optional[k.key()]; g != nil {
		g.open()
	}
}

// ready records what is known of a kind of objects that may come late. What was read is kept
// by the sink, whatever the server answers later.
func (d *dispatcher) ready(k *kind, r readiness) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r <= d.unread[k.key()] {
		return
	}
	d.unread[k.key()] = r
	d.nodeRead = d.nodeRead || k.key() == "nodes" && r == read
	d.signal()
}

// unknown returns which kinds could not be read. A forbidden Node, and forbidden routes, are
// done without: that is an answer, and no later one is to be expected. ServiceCIDRs that are
// forbidden stay unknown: what they decide can stay as it is.
func (d *dispatcher) unknown() (u model.Unread) {
	for o := range d.rejected {
		u.Endpoints = u.Endpoints || o.Kind == "EndpointSlice"
	}
	u.Node = !d.nodeRead && d.unread["nodes"] == expected
	for resource := range d.optional {
		switch resource {
		case "servicecidrs":
			u.ServiceCIDRs = d.unread[resource] != read
		case otherNodesKey: // what they decide is decided again
		default:
			u.Routes = u.Routes || d.unread[resource] == expected
		}
	}
	return u
}

// run calls Synced when everything was passed to the sink, and then Problems, until
// ctx ends. It waits for the Node and what is optional only for a limited time: most
// Services do not depend on them.
func (d *dispatcher) run(ctx context.Context) {
	for _, g := range []*latch{d.services, d.slices} {
		select {
		case <-g.ch:
		case <-ctx.Done():
			return
		}
	}
	patience, cancel := context.WithTimeout(ctx, d.limits.nodeWait)
	for _, g := range append(slices.Collect(maps.Values(d.optional)), d.node) {
		select {
		case <-g.ch:
		case <-patience.Done():
		}
	}
	cancel()
	if ctx.Err() != nil {
		return
	}
	for {
		d.flush()
		select {
		case <-d.changed:
			sleep.For(ctx, d.limits.flush)
		case <-ctx.Done():
			return
		}
	}
}

// expects reports whether a kind that can be done without may still come.
func (d *dispatcher) expects() bool {
	for resource := range d.optional {
		if d.unread[resource] == expected {
			return true
		}
	}
	return false
}

// flush passes the sink all problems, and what is in doubt.
func (d *dispatcher) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u := d.unknown(); d.lastSynced == nil || d.lastUnread != u {
		d.lastUnread = u
		d.sink.Unread(u)
	}
	if whole := len(d.rejected) == 0 && d.nodeRead && !d.expects(); d.lastSynced == nil || *d.lastSynced != whole {
		d.lastSynced = &whole
		d.sink.Synced(whole)
	}
	d.sink.Problems(d.list())
}

// list returns the problems that are kept, in the order of their objects.
func (d *dispatcher) list() []model.Problem {
	all := d.problems.all()
	slices.SortFunc(all, func(a, b model.Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Detail, b.Detail))
	})
	if more := d.problems.omitted; more > 0 {
		all = append(all, model.Problem{
			Object: "API server", Why: model.WhyInvalid, Detail: fmt.Sprintf("%d more problems with its objects", more),
		})
	}
	if d.own == nil {
		missing := model.Problem{Object: "Node " + shown(d.nodeName), Why: model.WhyNoNode, Detail: "not read from the API server"}
		if d.nodeRead { // a node without a Node gets no traffic, as with kube-proxy
			missing.Unfit = true
			missing.Detail = "not found on the API server; if the node has another name, set --hostname-override"
		}
		all = append(all, missing)
	}
	return all
}

// Resource is the state of following one kind of objects.
type Resource struct {
	Name     string    // endpointslices
	Optional bool      // forwarding does not depend on it
	Listed   bool      // a list has been read to its end, at least once
	Contact  time.Time // the last answer, event or bookmark; the start before the first

	Failing time.Time // since when requests fail; zero while they do not
	Err     string    // why, and what to do

	Version  string // resourceVersion up to which everything is known; empty before the first list
	Objects  int    // that are known
	Lists    uint64 // lists that the server began to send
	Watches  uint64 // watches begun, those that start with a list included
	Events   uint64 // bookmarks included
	Failures uint64 // requests that failed
}

// Age returns the time since the last answer, event or bookmark.
func (r Resource) Age(now time.Time) time.Duration { return max(0, now.Sub(r.Contact)) }

// stale returns why the state is stale at a time, or "".
func (r Resource) stale(now time.Time, limit time.Duration) string {
	why := ""
	if r.Err != "" {
		why = ": " + r.Err
	}
	age := r.Age(now)
	if !r.Failing.IsZero() {
		age = max(age, now.Sub(r.Failing))
	}
	switch {
	case r.Optional:
		return ""
	case !r.Listed:
		return fmt.Sprintf("%s not listed for %ds%s", r.Name, int(age.Seconds()), why)
	case age > limit:
		return fmt.Sprintf("watch of %s silent for %ds; keeping last known state%s", r.Name, int(age.Seconds()), why)
	}
	return ""
}

// resourceStatus is the state of following one kind of objects. It is safe for
// concurrent use.
type resourceStatus struct {
	log    *failureLog
	name   string
	server string

	mu sync.Mutex
	r  Resource
}

func newResourceStatus(k *kind, j *failureLog, server string) *resourceStatus {
	return &resourceStatus{log: j, name: k.key(), server: server, r: Resource{Name: k.key(), Optional: k.optional, Contact: time.Now()}}
}

func (v *resourceStatus) resource() Resource {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.r
}

func (v *resourceStatus) note(f func(*Resource)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f(&v.r)
}

// list notes that the server began to send a list.
func (v *resourceStatus) list() { v.note(func(r *Resource) { r.Lists++ }) }

func (v *resourceStatus) watch() { v.note(func(r *Resource) { r.Watches++ }) }

// answered notes an answer.
func (v *resourceStatus) answered() { v.note(func(r *Resource) { r.Contact = time.Now() }) }

// event notes an event of a watch. One that is part of a list may be followed by
// a failure of that list each time; others prove that the watch works.
func (v *resourceStatus) event(works bool) {
	v.note(func(r *Resource) {
		r.Contact = time.Now()
		r.Events++
	})
	if works {
		v.works()
	}
}

// works records that a watch succeeds.
func (v *resourceStatus) works() {
	v.mu.Lock()
	failing := v.r.Failing
	v.r.Contact, v.r.Failing, v.r.Err = time.Now(), time.Time{}, ""
	v.mu.Unlock()
	if !failing.IsZero() {
		v.log.recovered(v.name)
	}
}

// unstreamable logs that lists come in pages.
func (v *resourceStatus) unstreamable(err error) {
	v.log.log.Debug("streaming list failed; using a paged list", "resource", v.name, "err", err)
}

func (v *resourceStatus) objects(n int) { v.note(func(r *Resource) { r.Objects = n }) }

// reached notes up to which version everything is known.
func (v *resourceStatus) reached(version string) { v.note(func(r *Resource) { r.Version = version }) }

func (v *resourceStatus) listed() { v.note(func(r *Resource) { r.Listed = true }) }

// failed notes a request that failed.
func (v *resourceStatus) failed(k *kind, err error) {
	text := explain(k, err, v.server)
	v.note(func(r *Resource) {
		r.Failures++
		if r.Failing.IsZero() {
			r.Failing = time.Now()
		}
		r.Err = text
	})
	v.log.failed(v.name, text)
}

// missing records that an optional kind of objects is not available. That is an answer: the
// server is reachable.
func (v *resourceStatus) missing(k *kind, err error) {
	text := explain(k, err, v.server)
	v.note(func(r *Resource) { r.Failures, r.Failing, r.Err = r.Failures+1, time.Time{}, text })
	v.log.recovered(v.name)
	v.log.missing(v.name, text)
}

const (
	// patience is how long a failure must last to be logged: a starting server
	// rejects all requests for a moment, until it has loaded its authorization rules.
	patience = time.Second
	// repeatLog is how often a persistent failure is logged again.
	repeatLog = 5 * time.Minute
	// repeatOther is how soon a failure with another text is logged; it doubles each
	// time, up to repeatLog, since a text may differ each time.
	repeatOther = 10 * time.Second
)

// failureLog logs requests that keep failing, and when they succeed again: once,
// though several kinds of objects meet the same one. It is safe for concurrent
// use.
type failureLog struct {
	log *slog.Logger

	mu      sync.Mutex
	failing map[string]*failure // by resource
	since   time.Time           // of the first of them
	logged  bool                // one of them was logged
	absent  map[string]bool     // kinds logged as missing
}

// failure is a lasting failure of one kind of objects.
type failure struct {
	first    time.Time     // since it was last followed
	loggedAt time.Time     // when it was last logged
	text     string        // what was logged
	other    time.Duration // how soon another text is logged
}

func newFailureLog(log *slog.Logger) *failureLog {
	return &failureLog{log: log, failing: map[string]*failure{}, absent: map[string]bool{}}
}

func (l *failureLog) failed(resource, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if len(l.failing) == 0 {
		l.since = now
	}
	f := l.failing[resource]
	if f == nil {
		f = &failure{first: now, other: repeatOther}
		l.failing[resource] = f
	}
	if now.Sub(f.first) < patience || !f.due(now, text) || l.loggedRecently(now, text) {
		return
	}
	if f.text != "" && f.text != text {
		f.other = sleep.Longer(f.other, repeatOther, repeatLog)
	}
	f.loggedAt, f.text, l.logged = now, text, true
	l.log.Warn("watching the API server failed; keeping last known state", "resource", resource, "err", text, "since", l.since)
}

func (f *failure) due(now time.Time, text string) bool {
	gap := f.other
	if text == f.text {
		gap = repeatLog
	}
	return now.Sub(f.loggedAt) >= gap
}

// loggedRecently reports whether a text was logged recently, for any kind of objects.
func (l *failureLog) loggedRecently(now time.Time, text string) bool {
	for _, f := range l.failing {
		if f.text == text && now.Sub(f.loggedAt) < repeatLog {
			return true
		}
	}
	return false
}

// missing logs, once, that an optional kind of objects is missing.
func (l *failureLog) missing(resource, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.absent[resource] {
		l.absent[resource] = true
		l.log.Warn("optional API resource not available; continuing without it", "resource", resource, "err", text)
	}
}

func (l *failureLog) recovered(resource string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.failing, resource)
	if len(l.failing) > 0 {
		return
	}
	if l.logged {
		l.logged = false
		l.log.Info("watch of the API server recovered", "after", time.Since(l.since))
	}
}

// maxText bounds the text kept and logged of one failure, in bytes.
const maxText = 2 << 10

// explain returns why a request failed and what to do about it.
func explain(k *kind, err error, server string) string {
	return printable.CutBytes(reason(k, err, server), maxText)
}

func reason(k *kind, err error, server string) string {
	status := err.Error()
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("%s; bind the user to the ClusterRole system:node-proxier, or add to its role: "+
			`{apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]}`, status, k.version.Group, k.resource)
	case apierrors.IsUnauthorized(err):
		return "API server rejected the credentials: " + status + "; is the token or client certificate expired, or of another cluster?"
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("API server does not serve %s of %s: %s; is its version too old?", k.resource, k.version, status)
	case errors.As(err, new(apierrors.APIStatus)):
		return fmt.Sprintf("API server cannot serve %s: %s", k.groupResource(), status)
	}
	return fmt.Sprintf("API server %s: %v", server, printable.WithoutURL(err))
}
