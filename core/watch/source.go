// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Hooks are callbacks for metrics and facts about the server. They may be nil, and
// must not block.
type Hooks struct {
	// Request follows every request, on its goroutine.
	Request func(Request)
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
	log       *slog.Logger
	limits    limits
	sink      target
	followers []*follower
	reviews   rest.Interface
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
	client, err := from.connect(c.API, hooks.Request)
	if err != nil {
		return nil, err
	}
	if kubeconfig := Path(c.API.Kubeconfig); c.API.Kubeconfig != "" && WorldWritable(kubeconfig) {
		log.Warn("kubeconfig is world-writable; remove that permission with chmod o-w", "kubeconfig", kubeconfig)
	}
	s := &Source{client: client, nodeName: c.NodeName, log: log, limits: defaultLimits()}
	if s.reviews, err = client.rest(corev1.SchemeGroupVersion, flowcontrol.NewTokenBucketRateLimiter(reviewRate, reviewBurst)); err != nil {
		return nil, err
	}
	j := newFailureLog(log)
	lists := make(chan struct{}, 1)
	s.sink = target{external: newLatch(), allowed: c.ExternalIPs}
	kinds := []kind{services(&s.sink), endpointSlices(&s.sink), ownNode(&s.sink, c.NodeName), serviceCIDRs(&s.sink), otherNodes(&s.sink, c.NodeName)}
	if c.GatewayRoutes {
		kinds = append(kinds, routes(&s.sink)...)
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
			kind: k, clients: clients, codec: client.Codec(), status: newResourceStatus(&k, j, client.Host()), lists: lists,
		})
	}
	return s, nil
}

// target forwards to the sink that Run is given, since the kinds are made before, in Open. It notes whether
// there is an external IP that might be another node's.
type target struct {
	Sink
	external *latch
	allowed  config.ExternalIPs
}

// SetService implements Sink.
func (t *target) SetService(s *model.Service) {
	if !t.allowed.Only && slices.ContainsFunc(s.ExternalIPs, func(ip netip.Addr) bool {
		return !slices.ContainsFunc(t.allowed.Allowed, func(p netip.Prefix) bool { return p.Contains(ip) })
	}) {
		t.external.open()
	}
	t.Sink.SetService(s)
}

// EventWriter returns what writes Events to the same server.
func (s *Source) EventWriter() (*EventWriter, error) {
	return s.client.Events(s.nodeName)
}

// Client returns the client, for other users of the same server.
func (s *Source) Client() *Client { return s.client }

// Run follows the API server until ctx ends, then it returns nil. Whatever
// happens to the server or the connection, it retries, and nothing that the
// sink has is removed because of it.
func (s *Source) Run(ctx context.Context, sink Sink) error {
	defer s.client.Close()
	s.sink.Sink = sink
	d := newDispatcher(sink, s.nodeName, s.limits)
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
	case <-s.sink.external.ch:
		return true
	case <-d.services.ch:
	case <-ctx.Done():
		return false
	}
	select {
	case <-s.sink.external.ch: // the last of them may have one
		return true
	default:
		d.listed(&f.kind)
	}
	select {
	case <-s.sink.external.ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// Resources returns the state of following each kind of objects.
func (s *Source) Resources() []Resource {
	var all []Resource
	for _, f := range s.followers {
		if f.others && !s.sink.external.isOpen() {
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
