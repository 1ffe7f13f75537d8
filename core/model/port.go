// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
	"time"
)

// Port is the desired state of one Service port in one IP family.
type Port struct {
	ID              PortID
	Frontends       []Frontend    // in the order of Kind, then as the Service lists them
	SessionAffinity time.Duration // ClientIP affinity timeout; 0 is none
	Scheduler       Scheduler
	Route           *RouteName // of the Gateway API, whose backends its endpoints are; nil for none

	// PreserveDestination asks that clients of its load balancer IPs reach endpoints with that
	// IP as the destination, which they must have themselves: kube-proxy's
	// annotation preserve-destination, for Windows only.
	PreserveDestination bool

	// HealthPort is the Service's healthCheckNodePort, or 0. LocalReady is what
	// it reports to load balancers: on how many distinct addresses of this family the
	// Service has ready endpoints on this node, whichever of its ports they serve.
	// It is 0 where there is no HealthPort.
	HealthPort uint16
	LocalReady int

	// Draining are all endpoints that still serve but are in no pool, because
	// they terminate, are not ready but serve, or because policy or hints leave them to others. They get no
	// new connections and keep those they have: flows to them are not stale
	// (core/flows). Empty for TCP, of which only unanswered handshakes are ever deleted.
	Draining []netip.AddrPort
}

// Frontend is one address of a Port: what its clients connect to.
type Frontend struct {
	Kind Kind
	// At is address and port. For KindNodePort the address is the unspecified
	// one of the family: Host.NodePorts states on which addresses it answers.
	At netip.AddrPort

	// Restricted frontends answer only clients inside Allow; all others are
	// dropped, whatever their origin. Allow holds no prefix twice and none that
	// lies inside another, in address order; it may be empty. Node ports are never
	// restricted.
	Restricted bool
	Allow      []netip.Prefix

	// On is the finished answer for each kind of sender. Where pods cannot be recognised
	// from others (Host.Pods), FromPod has FromOutside's.
	On [Origins]Action
}

// Kind is the kind of a frontend.
type Kind uint8

const (
	KindClusterIP Kind = iota
	KindExternalIP
	KindLoadBalancer
	KindNodePort
)

// String returns a short name for people.
func (k Kind) String() string {
	return [...]string{"cluster IP", "external IP", "load balancer IP", "node port"}[k]
}

// Origin is where a packet comes from, as far as policy cares. It is decided
// once for a packet, pods first: an address of the host inside the pods' range
// counts as a pod.
type Origin uint8

const (
	FromPod     Origin = iota // a pod of this node, by Host.Pods
	FromHost                  // a process in the host's own network
	FromOutside               // anything else: other nodes, their pods, the world
	Origins                   // how many there are
)

// String returns a short name for people.
func (o Origin) String() string { return [...]string{"pod", "host", "outside"}[o] }

// Action is what happens to a new connection. A connection that is balanced
// back to the very endpoint that it came from (hairpin) is SNATed even when SNAT is
// false, where the endpoint needs it (Host.NeedsHairpinSNAT): its reply would otherwise
// never pass this host.
type Action struct {
	Pool    *Pool // what to balance over; nil unless Verdict is Balance
	Verdict Verdict
	// Policy is the one that Pool was chosen by. Frontends with the same have the same
	// pool, and each keeps its policy when others come and go: data planes name by it
	// what they have for a pool.
	Policy TrafficPolicy
	// SNAT makes an endpoint see this host's address instead of the client's. It
	// is about packets that leave the host: an endpoint with an address of the
	// host itself sees its clients as they are, since answers need no way back.
	SNAT bool
	Why  Reason
}

// Verdict is the kind of an Action.
type Verdict uint8

const (
	Balance Verdict = iota // forward to an endpoint of the Pool
	Reject                 // answer "connection refused"
	Drop                   // do not answer
)

// String returns a short name for people.
func (v Verdict) String() string { return [...]string{"balance", "reject", "drop"}[v] }

// IndexFrontends finds the frontends of a port, which may be nil, by address. It is for comparing two states of one
// port, of which most frontends are in the same place.
func IndexFrontends(p *Port) Index[netip.AddrPort, Frontend] {
	x := Index[netip.AddrPort, Frontend]{Key: func(f *Frontend) netip.AddrPort { return f.At }}
	if p != nil {
		x.List = p.Frontends
	}
	return x
}

// IndexPorts finds ports by their ids.
func IndexPorts(all []*Port) Index[PortID, *Port] {
	return Index[PortID, *Port]{List: all, Key: func(p **Port) PortID { return (*p).ID }}
}

// Delta is one change of the desired state: Old is nil for a Port that is new,
// New is nil for one that is gone. Both have the same ID otherwise.
type Delta struct{ Old, New *Port }

// ID returns the id of the changed Port.
func (d Delta) ID() PortID {
	if d.New != nil {
		return d.New.ID
	}
	return d.Old.ID
}

// Equal reports whether two ports ask for the same, slot order included.
func (p *Port) Equal(o *Port) bool {
	return p == o || p != nil && o != nil && p.ID == o.ID && p.SessionAffinity == o.SessionAffinity && p.Scheduler == o.Scheduler && (p.Route == o.Route || p.Route != nil && o.Route != nil && *p.Route == *o.Route) &&
		p.PreserveDestination == o.PreserveDestination &&
		p.HealthPort == o.HealthPort && p.LocalReady == o.LocalReady && slices.Equal(p.Draining, o.Draining) &&
		slices.EqualFunc(p.Frontends, o.Frontends, Frontend.equal)
}

func (f Frontend) equal(o Frontend) bool {
	if f.Kind != o.Kind || f.At != o.At || f.Restricted != o.Restricted || !slices.Equal(f.Allow, o.Allow) {
		return false
	}
	for i := range f.On {
		if !f.On[i].equal(o.On[i]) {
			return false
		}
	}
	return true
}

func (a Action) equal(o Action) bool {
	return a.Verdict == o.Verdict && a.Policy == o.Policy && a.SNAT == o.SNAT && a.Why == o.Why && a.Pool.Equal(o.Pool)
}

// WhyText describes the reason of an action of the port, as a phrase that names its
// route.
func (p *Port) WhyText(why Reason) string {
	if p.Route != nil && why == WhyRoute {
		return "balanced over the backends of " + p.Route.String() + ", by weight"
	}
	return why.Text()
}

// Widest is the size of the largest pool of a port; 0 for nil.
func (p *Port) Widest() (n int) {
	if p == nil {
		return 0
	}
	for _, pool := range p.Pools() {
		n = max(n, len(pool.Endpoints))
	}
	return n
}

// Pools returns the distinct pools of a port, in the order in which its frontends
// use them. There are at most two: the cluster's and the local one.
func (p *Port) Pools() []*Pool {
	pools := make([]*Pool, 0, 2)
	for i := range p.Frontends {
		for _, a := range p.Frontends[i].On {
			if a.Pool != nil && !slices.Contains(pools, a.Pool) {
				pools = append(pools, a.Pool)
			}
		}
	}
	return pools
}

// PoolOf returns the pool that the frontends of a port have by a traffic policy; nil where none
// of them balances by it.
func (p *Port) PoolOf(policy TrafficPolicy) *Pool {
	for i := range p.Frontends {
		for _, a := range p.Frontends[i].On {
			if a.Pool != nil && a.Policy == policy {
				return a.Pool
			}
		}
	}
	return nil
}

// How many new clients with ClientIP affinity a data plane remembers for one Service port
// and for one namespace in any case, whatever all others do: at once, and as many again
// within a day, the longest that an affinity lasts. Data planes that can evict instead keep
// at most so many, and evict the oldest first. Half of a namespace's share is left to its
// other ports when one is flooded.
const (
	AffinityPortShare      = 1 << 12
	AffinityNamespaceShare = 1 << 13
)

// Scheduler is how a Port chooses among the endpoints of a pool for a new
// connection. Session affinity comes first, where there is any.
type Scheduler uint8

// The schedulers. What a mode cannot do is a Gap, and chosen at random.
const (
	DefaultScheduler Scheduler = iota // what the mode always does
	RoundRobin                        // one after the other
	LeastConnections                  // the endpoint with the fewest connections for its weight
	SourceHash                        // by the client's address
	Random
	Maglev // by the client's address and port, in a table that is the same on all nodes
	schedulers
)

var schedulerNames = [...]string{
	DefaultScheduler: "", RoundRobin: "rr", LeastConnections: "lc", SourceHash: "sh", Random: "random", Maglev: "maglev",
}

// String returns the scheduler's name in annotations; empty for the default.
func (s Scheduler) String() string { return schedulerNames[s] }

// ParseScheduler is the reverse of String.
func ParseScheduler(name string) (s Scheduler, ok bool) {
	for s = range schedulers {
		if s.String() == name {
			return s, true
		}
	}
	return DefaultScheduler, false
}
