package manifests

import (
	"cmp"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// key names an object. The zero key names none.
type key struct {
	class           class
	namespace, name string
}

// String returns "Service default/web" or "Node node-1".
func (k key) String() string {
	if k.class.clusterScoped() {
		return k.class.String() + " " + k.name
	}
	return k.class.String() + " " + k.namespace + "/" + k.name
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.class, o.class), cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

// object is what became of one manifest. It is shared between readings of the
// folder as long as the text of its document stays the same, so that two
// objects are most often found equal by their address.
type object struct {
	key     key    // zero if it cannot be told which object was meant
	bad     bool   // refused; the last good version stands
	start   int32  // the line of the object within its document, from 0
	foreign string // the kind, if it is none of ours

	service *model.Service // at most one of these; none for an object that is
	slice   *model.Slice   // bad, or fine but of no use, such as a headless
	node    *model.Node    // Service
	cidr    *model.ServiceCIDR

	faults []fault
}

// usable reports whether the object is one to hand on.
func (o *object) usable() bool {
	return o.service != nil || o.slice != nil || o.node != nil || o.cidr != nil
}

// placed is an object at its present place in the folder.
type placed struct {
	*object
	file string
	line int // of the document
}

func (p placed) whereNow() string { return where(p.file, p.line+int(p.start)) }

// moved returns the object with its present place in Where. Model values are
// immutable, so one that has moved is copied.
func (p placed) moved() *object {
	w := p.whereNow()
	if w == p.stood() || !p.usable() {
		return p.object
	}
	o := *p.object
	switch {
	case o.service != nil:
		v := *o.service
		o.service = &v
	case o.slice != nil:
		v := *o.slice
		o.slice = &v
	case o.node != nil:
		v := *o.node
		o.node = &v
	case o.cidr != nil:
		v := *o.cidr
		o.cidr = &v
	}
	o.place(w)
	return &o
}

// place sets where an object stands, before anybody else has seen it.
func (o *object) place(where string) {
	switch {
	case o.service != nil:
		o.service.Where = where
	case o.slice != nil:
		o.slice.Where = where
	case o.node != nil:
		o.node.Where = where
	case o.cidr != nil:
		o.cidr.Where = where
	}
}

// stood returns where the object was said to stand.
func (o *object) stood() string {
	switch {
	case o.service != nil:
		return o.service.Where
	case o.slice != nil:
		return o.slice.Where
	case o.node != nil:
		return o.node.Where
	case o.cidr != nil:
		return o.cidr.Where
	}
	return ""
}

// same reports whether two objects of one key say the same, wherever they
// stand.
func (o *object) same(p *object) bool {
	switch {
	case o == p:
		return true
	case o.service != nil && p.service != nil:
		return sameService(o.service, p.service)
	case o.slice != nil && p.slice != nil:
		return sameSlice(o.slice, p.slice)
	case o.node != nil && p.node != nil:
		return sameNode(o.node, p.node)
	case o.cidr != nil && p.cidr != nil:
		return slices.Equal(o.cidr.CIDRs, p.cidr.CIDRs)
	}
	return !o.usable() && !p.usable()
}

func sameService(a, b *model.Service) bool {
	return a.Name == b.Name && a.Type == b.Type && a.Created.Equal(b.Created) &&
		slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) && a.Restricted == b.Restricted &&
		slices.Equal(a.SourceRanges, b.SourceRanges) && a.External == b.External && a.Internal == b.Internal &&
		a.SessionAffinity == b.SessionAffinity && a.HealthCheckNodePort == b.HealthCheckNodePort && a.PreserveDestination == b.PreserveDestination &&
		slices.Equal(a.Ports, b.Ports)
}

func sameSlice(a, b *model.Slice) bool {
	return a.Name == b.Name && a.Service == b.Service && a.Family == b.Family && a.Triggered.Equal(b.Triggered) &&
		slices.Equal(a.Ports, b.Ports) && slices.EqualFunc(a.Endpoints, b.Endpoints, sameEndpoint)
}

func sameEndpoint(a, b model.SliceEndpoint) bool {
	return a.Addr == b.Addr && a.Node == b.Node && a.State == b.State && (a.Hints == b.Hints ||
		a.Hints != nil && b.Hints != nil && slices.Equal(a.Hints.Zones, b.Hints.Zones) && slices.Equal(a.Hints.Nodes, b.Hints.Nodes))
}

func sameNode(a, b *model.Node) bool {
	return a.Name == b.Name && a.Zone == b.Zone && slices.Equal(a.IPs, b.IPs) &&
		slices.Equal(a.PodCIDRs, b.PodCIDRs) && a.Leaving == b.Leaving
}
