// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"iter"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Object is an input: a *Service, *Slice, *Node, *ServiceCIDR, *Route or *Grant.
type Object interface{ Key() Key }

// Key names an object among all.
type Key struct{ Kind, Namespace, Name string }

// String returns "Kind namespace/name", or "Kind name".
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

func (s *Service) Key() Key     { return Key{"Service", s.Name.Namespace, s.Name.Name} }
func (s *Slice) Key() Key       { return Key{"EndpointSlice", s.Name.Namespace, s.Name.Name} }
func (n *Node) Key() Key        { return Key{"Node", "", n.Name} }
func (c *ServiceCIDR) Key() Key { return Key{"ServiceCIDR", "", c.Name} }
func (r *Route) Key() Key       { return Key{r.Name.Kind(), r.Name.Namespace, r.Name.Name} }
func (g *Grant) Key() Key       { return Key{"ReferenceGrant", g.Name.Namespace, g.Name.Name} }

// Sink receives what a source reads. Its methods are called one at a time, maybe by several
// goroutines, and should not block: while they do, the source waits.
type Sink interface {
	Set(Object)    // adds or replaces one
	Delete(Object) // removes that of the same key; nothing else of it counts

	// Problems replaces the problems of all objects.
	Problems([]Problem)

	// Unread states which kinds could not be read yet. It precedes the first Synced, and
	// follows when that changes.
	Unread(Unread)

	// Synced is called once all objects that existed at the start, and could be read soon, were passed
	// on; and again when whole changes: it states whether something could be understood
	// of each object.
	Synced(whole bool)
}

// Objects are the inputs of one moment. In JSON they are those that users write.
type Objects struct {
	Services     []*Service     `json:"services"`
	Slices       []*Slice       `json:"slices"`
	Nodes        []*Node        `json:"-"`
	ServiceCIDRs []*ServiceCIDR `json:"-"`
	Routes       []*Route       `json:"routes,omitempty"`
	Grants       []*Grant       `json:"grants,omitempty"`
}

// Add adds an object.
func (all *Objects) Add(o Object) {
	switch o := o.(type) {
	case *Service:
		all.Services = append(all.Services, o)
	case *Slice:
		all.Slices = append(all.Slices, o)
	case *Node:
		all.Nodes = append(all.Nodes, o)
	case *ServiceCIDR:
		all.ServiceCIDRs = append(all.ServiceCIDRs, o)
	case *Route:
		all.Routes = append(all.Routes, o)
	case *Grant:
		all.Grants = append(all.Grants, o)
	}
}

// All ranges over them, each kind by itself.
func (all *Objects) All() iter.Seq[Object] {
	return func(yield func(Object) bool) {
		_ = each(all.Nodes, yield) && each(all.ServiceCIDRs, yield) && each(all.Services, yield) && each(all.Slices, yield) &&
			each(all.Grants, yield) && each(all.Routes, yield)
	}
}

func each[T Object](all []T, yield func(Object) bool) bool {
	for _, o := range all {
		if !yield(o) {
			return false
		}
	}
	return true
}

// Same reports whether two inputs, which are pointers, mean the same: all their fields are equal but those with the tag
// same:"-", which state where a value is from. So a new field counts.
func Same(a, b any) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && same(reflect.ValueOf(a), reflect.ValueOf(b))
}

func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		return a.Pointer() == b.Pointer() || !a.IsNil() && !b.IsNil() && same(a.Elem(), b.Elem())
	case reflect.Slice:
		for i := 0; i < a.Len() && a.Len() == b.Len(); i++ {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return a.Len() == b.Len()
	case reflect.Struct:
		if at, is := a.Interface().(time.Time); is {
			return at.Equal(b.Interface().(time.Time))
		}
		for i := range a.NumField() {
			f := a.Type().Field(i)
			if !f.IsExported() { // an address, or a prefix
				return a.Equal(b)
			}
			if f.Tag.Get("same") != "-" && !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return a.Equal(b)
}

// Unread states which kinds of inputs a source could not read, though there may be some:
// what depends on them is unknown, which is not the same as absent. A kind that the server
// does not have (404) is absent.
type Unread struct {
	Node         bool
	ServiceCIDRs bool // also while they are forbidden (403)
	Routes       bool // or grants of the Gateway API
	Endpoints    bool // some EndpointSlices, though others were read
}

// String names the kinds; it is empty for none.
func (u Unread) String() string {
	var names []string
	for _, k := range []struct {
		name   string
		unread bool
	}{{"Node", u.Node}, {"ServiceCIDRs", u.ServiceCIDRs}, {"routes", u.Routes}, {"EndpointSlices", u.Endpoints}} {
		if k.unread {
			names = append(names, k.name)
		}
	}
	return strings.Join(names, ", ")
}

// ServiceType is the spec.type of a Service that can have a virtual IP.
// Headless and ExternalName Services never become a Service of this model.
type ServiceType uint8

const (
	ClusterIP ServiceType = iota
	NodePort
	LoadBalancer
)

// TrafficPolicy states which endpoints may serve: those of the whole cluster or
// those on this node only. core/resolve decides by it which do; compilers name pools by it.
type TrafficPolicy uint8

const (
	Cluster TrafficPolicy = iota
	Local
)

// TrafficPolicies lists both policies, for ranging.
func TrafficPolicies() [2]TrafficPolicy { return [...]TrafficPolicy{Cluster, Local} }

// Service is what Tandem needs of a Kubernetes Service. Addresses are valid,
// canonical and of either family; those that are not were rejected by the source.
type Service struct {
	Name    ServiceName
	Created time.Time // zero when unknown, as in most manifests
	Where   string    `same:"-"` // "file:line" for manifests, empty for the API server
	Version uint64    `same:"-"` // resourceVersion; 0 when unknown, as in most manifests

	// Each list has an address once.
	ClusterIPs      []netip.Addr
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr // status.loadBalancer.ingress with ipMode VIP; hostnames and Proxy are left out

	// Restricted is set when spec.loadBalancerSourceRanges names any range,
	// valid or not. SourceRanges then holds the valid ones of both families; a
	// family without a range of its own is closed, not open.
	SourceRanges []netip.Prefix
	Restricted   bool

	Type                ServiceType
	External, Internal  TrafficPolicy // externalTrafficPolicy, internalTrafficPolicy
	PreserveDestination bool          // as Port.PreserveDestination
	HealthCheckNodePort uint16
	SessionAffinity     time.Duration // ClientIP affinity timeout; 0 is no affinity
	Choice              Choice
	Ports               []ServicePort
}

// Fields shows the fields that all nodes know alike and that count, but for Name and Created: the name that users know, which
// for a list is that of a member, and a pointer to the field. Hashes (core/question) and the words of a change (core/history)
// are made of them in this order: a new field comes last.
func (s *Service) Fields(show func(name string, field any)) {
	show("type", &s.Type)
	show("cluster IP", &s.ClusterIPs)
	show("external IP", &s.ExternalIPs)
	show("load balancer IP", &s.LoadBalancerIPs)
	show("restricted to source ranges", &s.Restricted)
	show("source range", &s.SourceRanges)
	show("externalTrafficPolicy", &s.External)
	show("internalTrafficPolicy", &s.Internal)
	show("session affinity", &s.SessionAffinity)
	show("health check node port", &s.HealthCheckNodePort)
	show("destination preserved", &s.PreserveDestination)
	show("scheduler", &s.Choice.Scheduler)
	show("slow start", &s.Choice.SlowStart)
	show("spill-over", &s.Choice.Spill)
	show("port", &s.Ports)
}

// Unassigned is what a Service leaves to the API server: such a Service is a manifest that nobody has applied yet. A
// cluster IP is the unspecified address of its family then, and a node port is 0. A health check node port that a
// load balancer with policy Local lacks is left, too, without a field of its own.
type Unassigned struct {
	Service    ServiceName `json:"service"`
	ClusterIPs bool        `json:"clusterIPs,omitempty"`
	NodePorts  bool        `json:"nodePorts,omitempty"` // those that are 0
}

// Choice is how a Service wants its endpoints chosen: its annotations.
type Choice struct {
	Scheduler Scheduler
	SlowStart time.Duration // how long a new endpoint gets fewer connections than others; 0 is none
	Spill     Spill
}

// Spill is when a zone's connections go to endpoints of other zones, too. The zero
// value is never.
type Spill struct {
	Above float64 // times the fair share of an endpoint; at least 1, or 0 for any
	Floor int     // fewer endpoints than these are too few for a zone
}

// MaxSlowStart bounds how long an endpoint counts as new.
const MaxSlowStart = time.Hour

// Valid reports whether a choice is one that annotations can make.
func (c Choice) Valid() bool {
	return c.Scheduler <= Maglev && c.SlowStart >= 0 && c.SlowStart <= MaxSlowStart && c.Spill.valid()
}

func (s Spill) valid() bool {
	return (s.Above == 0 || s.Above >= 1 && s.Above <= math.MaxUint16) && s.Floor >= 0 && s.Floor <= math.MaxUint16
}

// ServicePort is one entry of spec.ports. The targetPort is not part of it:
// EndpointSlices carry the resolved number under the same port name.
type ServicePort struct {
	Name     string
	Proto    Proto
	Port     uint16
	NodePort uint16 // 0 when none
}

// Slice is what Tandem needs of an EndpointSlice.
type Slice struct {
	Name      SliceName
	Service   string // the kubernetes.io/service-name label; same namespace
	Ports     []SlicePort
	Endpoints []SliceEndpoint
	Pods      string    // the pods that they are, as PackPods packs their names; for people
	Triggered time.Time // endpoints.kubernetes.io/last-change-trigger-time, zero when absent
	Version   uint64    `same:"-"` // as Service.Version
	Where     string    `same:"-"`

	// Weight is the share of new connections of each endpoint, where Weighted: with 0
	// they get none. Else it is 0, and counts as DefaultWeight beside others.
	Weight   uint16
	Weighted bool
	Family   Family
}

// Owner is the Service that it belongs to, which need not be there.
func (s *Slice) Owner() ServiceName { return ServiceName{s.Name.Namespace, s.Service} }

// DefaultWeight is the weight of endpoints whose slice has none, beside others that
// have. It is Cilium's.
const DefaultWeight = 100

// SlicePort is one port of a slice.
type SlicePort struct {
	Name  string
	Proto Proto
	Port  uint16
}

// SliceEndpoint is one endpoint of a slice: its first address only, as
// EndpointSlice defines the further ones to be ignored by proxies.
type SliceEndpoint struct {
	Addr  netip.Addr
	Node  string // nodeName; empty when unknown, which counts as remote
	Hints *Hints // nil when the endpoint has none
	State EndpointState
	Warm  uint8 `same:"-"` // tenths of its weight that it gets while it is new; 0 is all
}

// MarkEndpoints returns slices with what mark makes of their endpoints. It changes none: slices with an endpoint
// that becomes another are copied.
func MarkEndpoints(from []*Slice, mark func(SliceEndpoint) SliceEndpoint) []*Slice {
	all := from
	for i, s := range from {
		var own *Slice
		for k := range s.Endpoints {
			marked := mark(s.Endpoints[k])
			if marked == s.Endpoints[k] {
				continue
			}
			if own == nil {
				own = new(*s)
				own.Endpoints = slices.Clone(s.Endpoints)
			}
			own.Endpoints[k] = marked
		}
		if own == nil {
			continue
		}
		if &all[0] == &from[0] {
			all = slices.Clone(from)
		}
		all[i] = own
	}
	return all
}

// EndpointState is a set of endpoint conditions.
type EndpointState uint8

// The conditions, with EndpointSlice's defaults already applied (absent ready
// and serving mean true, absent terminating means false).
const (
	Ready EndpointState = 1 << iota
	Serving
	Terminating
)

// Unanswered marks an endpoint that has stopped answering (core/suspect). No source
// says so: core/track adds it.
const Unanswered = Terminating << 1

// Suspects are the addresses of endpoints that have stopped answering: those with the
// zero time, which get no new connections, and those that answer again since a time
// and get ever more for SlowStart. They are immutable.
type Suspects map[netip.Addr]time.Time

// SlowStart is how long an endpoint that answers again takes to get its full share.
const SlowStart = 10 * time.Second

// Has reports whether all conditions of c hold.
func (s EndpointState) Has(c EndpointState) bool { return s&c == c }

// Hints name the zones and nodes that should use an endpoint.
type Hints struct{ Zones, Nodes []string }

// Node is what Tandem needs of this machine's own Node object. Of others only the addresses matter.
type Node struct {
	Name     string
	Zone     string       // topology.kubernetes.io/zone
	IPs      []netip.Addr // InternalIPs, then ExternalIPs
	PodCIDRs []netip.Prefix
	Leaving  bool   // being deleted, or tainted by the cluster autoscaler
	Where    string `same:"-"`
}

// Machine is the facts of this machine that its Node object does not have.
type Machine struct {
	Addresses []LocalAddress // in the order of the system's interfaces
	// APIServers are the addresses of the API server that Services come from: those
	// that its name resolves to and those connected to. Empty without one.
	APIServers []netip.AddrPort
	// Listeners are those of this machine's own addresses and ports that Services ask for and on
	// which a process listens; nil is unknown.
	Listeners *Listeners `json:",omitempty"`
	// Salt is a number that users of the cluster do not know, the same after a restart; 0 where
	// there is none.
	Salt uint64 `json:",omitempty"`
}

// Listeners are addresses and ports on which processes of a machine listen, each once, sorted.
type Listeners struct{ All []Listener }

// Listener is one of them.
type Listener struct {
	Proto Proto
	At    netip.AddrPort
	Name  string // of the process, for people; or why it cannot be told whether there is one
}

// Compare orders by place.
func (l Listener) Compare(o Listener) int {
	return cmp.Or(cmp.Compare(l.Proto, o.Proto), l.At.Compare(o.At))
}

// Find returns the listener at a place.
func (l *Listeners) Find(proto Proto, at netip.AddrPort) (found Listener, ok bool) {
	want := Listener{Proto: proto, At: at}
	i, ok := slices.BinarySearchFunc(l.All, want, Listener.Compare)
	if ok {
		found = l.All[i]
	}
	return found, ok
}

// LocalAddress is an address that this machine's network stack has, with the
// length of its network's prefix. Left out are loopback and link-local ones, and those
// that are there for Services: on Linux on dummy devices, by kube-ipvs0, by the cache of
// NodeLocal DNS for the cluster IP of kube-dns, or for an address that many machines have;
// on Windows those that are never a source.
type LocalAddress struct{ Prefix netip.Prefix }

// ServiceCIDR is what Tandem needs of a ServiceCIDR (KEP-1880): ranges that
// cluster IPs are taken from.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix // without host bits, each once, of either family
	Where string         `same:"-"`
}
