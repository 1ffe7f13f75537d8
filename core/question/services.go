// SPDX-License-Identifier: Apache-2.0

package question

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Services lists Services with their frontends and, of a single one, every endpoint
// of its slices and why it is used or not. Its JSON form is stable.
type Services struct {
	Node     string          `json:"node" nodes:"own"`
	Mode     string          `json:"mode"`
	Services []ServiceDetail `json:"services"`
	Total    int             `json:"total"` // those included that a filter leaves out
}

// ServiceDetail is one Service.
type ServiceDetail struct {
	Service
	Frontends []FrontendDetail `json:"frontends"`
	Used      int              `json:"used"`                // endpoints that take connections, each port's
	Endpoints []EndpointDetail `json:"endpoints,omitempty"` // of a single Service
}

// FrontendDetail is a frontend, and since when it is programmed; absent for "since the
// start, or longer".
type FrontendDetail struct {
	Frontend
	Family string     `json:"family"` // IPv4, IPv6: a node port's address does not tell
	Since  *time.Time `json:"since,omitempty" nodes:"-"`
}

// EndpointDetail is one endpoint of a slice for one port.
type EndpointDetail struct {
	Port       string     `json:"port" nodes:"key"`
	Protocol   string     `json:"protocol" nodes:"key"`
	Address    string     `json:"address" nodes:"key"`
	Pod        string     `json:"pod,omitempty"` // of the Service's namespace
	Node       string     `json:"node,omitempty"`
	Slice      string     `json:"slice"`
	Conditions []string   `json:"conditions"`
	Used       bool       `json:"used"`
	Share      float64    `json:"share,omitempty"`      // of its port's new connections, by this node
	Unanswered bool       `json:"unanswered,omitempty"` // it has stopped answering
	Why        string     `json:"why"`
	Since      *time.Time `json:"since,omitempty" nodes:"-"` // as for frontends; of used ones
}

// ServicesRequest is what tandem services asks.
type ServicesRequest struct {
	Service string `json:"service,omitempty"` // NAMESPACE/NAME; empty for all, without their endpoints
	Filter  Filter `json:"filter,omitzero"`   // of all
}

// ListServices is the question of tandem services.
func ListServices() Verb[ServicesRequest, Services] {
	return Verb[ServicesRequest, Services]{Name: "services", Answer: services, list: servicesListed, Needs: func(r ServicesRequest) Needs {
		if r.Service == "" {
			return Needs{Services: (*track.Tracker).Unsorted, Sorted: true}
		}
		name, _ := model.ParseServiceName(r.Service) // services reports an invalid name
		return Needs{Services: func(t *track.Tracker) []*track.View { return t.Named(name) }, Since: name}
	}}
}

func services(_ context.Context, d *Document, r ServicesRequest) (out Services, err error) {
	only := r.Filter
	if d.Recorded != nil {
		only.States = nil // which are those that were recorded
	}
	if r.Service == "" {
		out = ServicesOf(d.Snapshot, only)
	} else {
		name, err := model.ParseServiceName(r.Service)
		if err != nil {
			return out, err
		}
		var ok bool
		if out, ok = ServiceOf(d.Snapshot, name, d.Since); !ok {
			return out, unknownService(name)
		}
	}
	if d.Recorded != nil {
		out.Recall(d.Recorded.Status.Services)
		out.Services = slices.DeleteFunc(out.Services, func(s ServiceDetail) bool { return !r.Filter.Match(s.Name, s.State) })
	}
	out.Node, out.Mode, out.Total = d.Host.Name, d.Facts.Mode, len(d.Snapshot.Services)
	return out, nil
}

// servicesListed is services of a running proxy, with those of a list made while it is written.
func servicesListed(ctx context.Context, d *Document, r ServicesRequest) (any, error) {
	if r.Service != "" {
		return services(ctx, d, r)
	}
	return listServices(d.Snapshot, r.Filter).In(Services{Node: d.Host.Name, Mode: d.Facts.Mode, Total: len(d.Snapshot.Services)}, "services"), nil
}

// ListChanges is the question of tandem history. It does not use the engine's goroutine.
func ListChanges() Verb[history.Filter, history.Document] {
	return Verb[history.Filter, history.Document]{Name: "history", Answer: changes, list: changesListed, Needs: func(history.Filter) Needs { return Needs{} }}
}

// Changes is the history that a filter selects.
func (d *Document) Changes(f history.Filter) history.Document { return history.Whole(d.History(f)) }

func changes(_ context.Context, d *Document, f history.Filter) (history.Document, error) {
	if f.Limit < 0 {
		return history.Document{}, fmt.Errorf("limit %d: must not be negative", f.Limit)
	}
	return d.Changes(f), nil
}

func changesListed(ctx context.Context, d *Document, f history.Filter) (any, error) {
	if f.Limit < 0 {
		return changes(ctx, d, f)
	}
	out, n, each := d.History(f)
	return wire.List[history.Entry]{Len: n, Each: each}.In(out, "entries"), nil
}

// ServicesOf lists the Services of a snapshot that a filter selects.
func ServicesOf(s *engine.Snapshot, only Filter) Services {
	list := listServices(s, only)
	out := Services{Services: make([]ServiceDetail, 0, list.Len)}
	for one := range list.Each {
		own := *one
		own.Frontends = slices.Clone(one.Frontends)
		out.Services = append(out.Services, own)
	}
	return out
}

// listServices lists the Services of a snapshot that a filter selects, one at a time.
func listServices(s *engine.Snapshot, only Filter) wire.List[ServiceDetail] {
	faults := faultsOf(s)
	selected := s
	var one ServiceDetail // at a time
	var memory []Frontend
	if !only.All() {
		selected = new(engine.Snapshot)
		for _, svc := range s.Each() {
			if !only.Named(svc.Object.Name.String()) {
				continue
			}
			if one.describe(s, svc, faults, nil, &memory); only.Match(one.Name, one.State) {
				selected.Services = append(selected.Services, svc)
			}
		}
	}
	return wire.List[ServiceDetail]{Len: len(selected.Services), Each: func(yield func(*ServiceDetail) bool) {
		for _, svc := range selected.Each() {
			if one.describe(s, svc, faults, nil, &memory); !yield(&one) {
				return
			}
		}
	}}
}

// Recall restores the states and problems that Services had when a snapshot was taken:
// failures do not follow from its inputs.
func (s *Services) Recall(then []Service) {
	known := make(map[string]*Service, len(then))
	for i := range then {
		known[then[i].Name] = &then[i]
	}
	for i := range s.Services {
		if was := known[s.Services[i].Name]; was != nil {
			s.Services[i].State, s.Services[i].Problems = was.State, was.Problems
		}
	}
}

// ServiceOf describes one; ok is false when there is none of the name.
func ServiceOf(s *engine.Snapshot, name model.ServiceName, since engine.Since) (out Services, ok bool) {
	svc, ok := Find(s, name)
	if !ok {
		return out, false
	}
	var d ServiceDetail
	d.describe(s, svc, faultsOf(s), since, new([]Frontend))
	share, pods := sharesOf(svc.Ports), model.PodsOf(svc.Slices)
	for _, u := range resolve.EndpointUses(s.Host, resolve.MarkUnanswered(svc.Slices, s.Suspects), svc.Ports) {
		e := EndpointDetail{
			Port: u.Port.Name, Protocol: u.Port.Proto.String(), Address: u.Addr.String(), Pod: pods[u.Addr.Addr()], Node: u.Node,
			Slice: u.Slice.Name, Conditions: conditions(u.State), Used: u.Used, Why: u.Why,
			Unanswered: u.State.Has(model.Unanswered),
		}
		if at := (engine.SinceKey{Port: u.Port, At: u.Addr}); u.Used {
			e.Share = share[at]
			if since, known := since[at]; known {
				e.Since = &since
			}
		}
		d.Endpoints = append(d.Endpoints, e)
	}
	return Services{Services: []ServiceDetail{d}}, true
}

// sharesOf are the shares that endpoints have of the new connections of their ports: in the first pool that has them.
func sharesOf(ports []*model.Port) map[engine.SinceKey]float64 {
	share := map[engine.SinceKey]float64{}
	for _, p := range ports {
		for _, pool := range p.Pools() {
			for i, e := range pool.Endpoints {
				if at := (engine.SinceKey{Port: p.ID, At: e.Addr}); share[at] == 0 {
					share[at] = pool.Share(i)
				}
			}
		}
	}
	return share
}

// Find returns a Service of a snapshot.
func Find(s *engine.Snapshot, name model.ServiceName) (svc *track.View, ok bool) {
	i, ok := slices.BinarySearchFunc(s.Services, name, func(svc *track.View, n model.ServiceName) int { return svc.Object.Name.Compare(n) })
	if !ok {
		return nil, false
	}
	return s.Services[i], true
}

// describe describes a Service, in place of the one before. Memory is for its frontends meanwhile.
func (d *ServiceDetail) describe(s *engine.Snapshot, svc *track.View, found faults, since engine.Since, memory *[]Frontend) {
	*d = ServiceDetail{Service: Service{Name: svc.Object.Name.String(), Hash: ServiceHash(svc), Frontends: (*memory)[:0]}, Frontends: d.Frontends[:0]}
	d.Service.describe(svc, s, found.services[svc.Object.Name])
	described := d.Service.Frontends // in the order of ports and theirs
	*memory = described
	d.Service.Frontends = nil
	d.Frontends = slices.Grow(d.Frontends, len(described))
	if d.Frontends == nil {
		d.Frontends = []FrontendDetail{}
	}
	for _, p := range svc.Ports {
		most := 0
		for i := range p.Frontends {
			f := FrontendDetail{Frontend: described[len(d.Frontends)], Family: p.ID.Family.String()}
			if at, known := since[engine.SinceKey{Port: p.ID, At: p.Frontends[i].At}]; known {
				f.Since = &at
			}
			most = max(most, f.Endpoints)
			d.Frontends = append(d.Frontends, f)
		}
		d.Used += most
	}
}

// conditions are the names of those that hold.
func conditions(s model.EndpointState) (names []string) {
	names = []string{}
	for _, c := range [...]struct {
		is   model.EndpointState
		name string
	}{{model.Ready, "ready"}, {model.Serving, "serving"}, {model.Terminating, "terminating"}} {
		if s.Has(c.is) {
			names = append(names, c.name)
		}
	}
	return names
}

// Top states which Services get how many new connections. Its JSON form is stable.
type Top struct {
	At       time.Time    `json:"at"`
	Mode     string       `json:"mode"`
	Services []TopService `json:"services"` // most first
	// NotCounted is why there are no new connections: the mode in use counts none or, in a snapshot, they could
	// not be read.
	NotCounted string `json:"notCounted,omitempty"`
	// EndpointsNotCounted is why there is nothing of endpoints, where that was asked for.
	EndpointsNotCounted string `json:"endpointsNotCounted,omitempty"`
	// Tracked means that open connections are those of connection tracking, of Services that have any.
	Tracked bool `json:"tracked,omitempty"`
	// BytesNotCounted is why traffic has no bytes.
	BytesNotCounted string `json:"bytesNotCounted,omitempty"`
}

// TopService are the new connections of a Service.
type TopService struct {
	Service   string       `json:"service"`
	New       uint64       `json:"new"`                 // since its frontends are there
	PerSecond float64      `json:"perSecond,omitempty"` // between two looks
	Frontends []TopAddress `json:"frontends"`           // with -o wide, json and yaml
	Endpoints []TopAddress `json:"endpoints,omitempty"` // where asked for
	Traffic   *TopTraffic  `json:"traffic,omitempty"`   // where asked for, or nothing else is counted
}

// TopAddress are the new connections of a frontend, or those that an endpoint got from a Service.
type TopAddress struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"` // of an endpoint, in the Service's namespace
	Proto   string `json:"protocol"`
	New     uint64 `json:"new"`

	PerSecond float64     `json:"perSecond,omitempty"` // of an endpoint, between two looks
	Traffic   *TopTraffic `json:"traffic,omitempty"`   // of an endpoint, as of its Service
}

// TopTraffic is what connection tracking knows of the connections of a Service, or of one of its endpoints, that are
// there now, in both directions.
type TopTraffic struct {
	Connections uint64  `json:"connections"`
	Bytes       uint64  `json:"bytes"`
	PerSecond   float64 `json:"bytesPerSecond,omitempty"` // more than at the look before, at least 0
}

// TopRequest is what tandem top asks. Services without connections are left out.
type TopRequest struct {
	Filter    Filter `json:"filter,omitzero"`
	Frontends bool   `json:"frontends,omitempty"` // with the counts of each
	Endpoints bool   `json:"endpoints,omitempty"` // with those of each endpoint
	Bytes     bool   `json:"bytes,omitempty"`     // with what conntrack has counted
	// Open has conntrack stand in where the data plane counts no new connections, or not those of endpoints that are
	// asked for: with the open ones, and their bytes where it counts those. What neither counts is no error then.
	Open bool `json:"open,omitempty"`
}

// CountConnections is the question of tandem top.
func CountConnections() Verb[TopRequest, Top] {
	return Verb[TopRequest, Top]{Name: "top", Kernel: true, Answer: top, Needs: func(r TopRequest) Needs {
		return Needs{Counts: &r, Services: (*track.Tracker).Unsorted}
	}}
}

func top(_ context.Context, d *Document, r TopRequest) (Top, error) {
	switch {
	case d.Recorded != nil && d.Recorded.Top != nil:
		t := *d.Recorded.Top
		t.Services = slices.DeleteFunc(slices.Clone(t.Services), func(s TopService) bool { return !r.Filter.Match(s.Service, "") })
		return t, nil
	case d.Counts == nil:
		return Top{At: d.At, Mode: d.Facts.Mode, Services: []TopService{}, NotCounted: NotCounted(d.Facts.Mode)}, nil
	}
	from := *d.Counts
	from.Mode, from.Frontends = d.Facts.Mode, r.Frontends
	return TopOf(from, d.Services, r.Filter), nil
}

// NotCounted says why there are no counts of a mode.
func NotCounted(mode string) string {
	return "connections are not counted in mode " + mode + ": modes iptables, ipvs and userspace count them, and mode nftables with --count-connections"
}

// frontendKey is a frontend, or a port, as data planes count it.
type frontendKey struct {
	proto model.Proto
	at    netip.AddrPort
	port  model.PortID
}

// TopCounts adds up what a data plane has counted.
type TopCounts map[frontendKey]uint64

// Add adds a count. Frontends without connections, mostly nearly all, are left out.
func (t TopCounts) Add(c dataplane.Connections) {
	if c.New > 0 {
		t[frontendKey{c.Proto, c.At, c.Port}] += c.New
	}
}

// TopEndpoints adds up what a data plane has counted by endpoint of a frontend.
type TopEndpoints map[frontendKey]map[netip.AddrPort]uint64

// Add adds a count.
func (t TopEndpoints) Add(c dataplane.Connections) {
	if c.New == 0 {
		return
	}
	k := frontendKey{c.Proto, c.At, c.Port}
	if t[k] == nil {
		t[k] = map[netip.AddrPort]uint64{}
	}
	t[k][c.Endpoint] += c.New
}

// endpoints are what is known of a Service's endpoints, the busiest first: of those that it had, too, as long as the
// data plane or a connection knows them.
func (from *TopSources) endpoints(s *track.View) (all []TopAddress) {
	pods := model.PodsOf(s.Slices)
	for _, p := range s.Ports {
		sum := map[netip.AddrPort]*TopAddress{}
		of := func(at netip.AddrPort) *TopAddress {
			if sum[at] == nil {
				sum[at] = &TopAddress{Address: at.String(), Pod: pods[at.Addr()], Proto: p.ID.Proto.String()}
			}
			return sum[at]
		}
		for i := range p.Frontends {
			for at, n := range from.Endpoints[frontendKey{proto: p.ID.Proto, at: p.Frontends[i].At}] {
				of(at).New += n
			}
			from.Flows.at(p, i, from.Node, func(at netip.AddrPort, f TopTraffic) {
				if !at.IsValid() {
					return
				}
				e := of(at)
				if e.Traffic == nil {
					e.Traffic = new(TopTraffic)
				}
				e.Traffic.add(f)
			})
		}
		for _, e := range sum {
			all = append(all, *e)
		}
	}
	sortAddresses(all)
	return all
}

func sortAddresses(all []TopAddress) {
	slices.SortFunc(all, func(a, b TopAddress) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(b.New, a.New), b.Traffic.compare(a.Traffic), strings.Compare(a.Address, b.Address), strings.Compare(a.Proto, b.Proto))
	})
}

// TopFlows adds up what connection tracking has of frontends, by endpoint.
type TopFlows map[frontendKey]map[netip.AddrPort]TopTraffic

// Add adds a connection to a frontend, which an endpoint answers.
func (t TopFlows) Add(proto model.Proto, at, endpoint netip.AddrPort, bytes uint64) {
	k := frontendKey{proto: proto, at: at}
	if t[k] == nil {
		t[k] = map[netip.AddrPort]TopTraffic{}
	}
	if endpoint == at { // no DNAT: not a connection to a Service
		endpoint = netip.AddrPort{}
	}
	f := t[k][endpoint]
	f.add(TopTraffic{Connections: 1, Bytes: bytes})
	t[k][endpoint] = f
}

// at calls each for the endpoints of a frontend. The connections to a node port are to any of the node's addresses.
func (t TopFlows) at(p *model.Port, i int, node []netip.Addr, each func(endpoint netip.AddrPort, f TopTraffic)) {
	front, to := p.Frontends[i].At, node
	if !front.Addr().IsUnspecified() {
		to = []netip.Addr{front.Addr()}
	}
	for _, a := range to {
		if a.Is4() != front.Addr().Is4() {
			continue
		}
		for endpoint, f := range t[frontendKey{proto: p.ID.Proto, at: netip.AddrPortFrom(a, front.Port())}] {
			each(endpoint, f)
		}
	}
}

// of returns the traffic of a Service.
func (t TopFlows) of(s *track.View, node []netip.Addr) *TopTraffic {
	sum := TopTraffic{}
	for _, p := range s.Ports {
		for i := range p.Frontends {
			t.at(p, i, node, func(_ netip.AddrPort, f TopTraffic) { sum.add(f) })
		}
	}
	return &sum
}

func (t *TopTraffic) add(more TopTraffic) {
	t.Connections += more.Connections
	t.Bytes += more.Bytes
}

// compare orders traffic by what it is now, nothing first.
func (t *TopTraffic) compare(o *TopTraffic) int {
	var a, b TopTraffic
	if t != nil {
		a = *t
	}
	if o != nil {
		b = *o
	}
	return cmp.Or(cmp.Compare(a.PerSecond, b.PerSecond), cmp.Compare(a.Connections, b.Connections), cmp.Compare(a.Bytes, b.Bytes))
}

// TopSources are what Top is made of.
type TopSources struct {
	Mode      string
	At        time.Time
	Counts    TopCounts    // nil where there are none
	Endpoints TopEndpoints // nil where not asked for, or for NoEndpoints
	Flows     TopFlows     // same
	Node      []netip.Addr // addresses of this node, for Flows
	Frontends bool         // with each one's count

	NoEndpoints, NoBytes string // why there are no Endpoints, and Flows have no bytes
}

// TopOf gives counts to the Services whose frontends they are of, and that a filter selects.
// Those without connections are left out, and each frontend's own count unless asked for.
func TopOf(from TopSources, services []*track.View, only Filter) Top {
	t := Top{At: from.At, Mode: from.Mode, Services: []TopService{}, Tracked: from.Flows != nil, EndpointsNotCounted: from.NoEndpoints, BytesNotCounted: from.NoBytes}
	if from.Counts == nil {
		t.NotCounted = NotCounted(from.Mode)
	}
	for _, s := range services {
		row := TopService{New: from.Counts.of(s)}
		if from.Flows != nil {
			row.Traffic = from.Flows.of(s, from.Node)
		}
		if row.New == 0 && (row.Traffic == nil || row.Traffic.Connections == 0) {
			continue
		}
		if row.Service = s.Object.Name.String(); !only.Match(row.Service, "") {
			continue
		}
		if row.Frontends = []TopAddress{}; from.Frontends {
			row.Frontends = from.Counts.frontends(s)
		}
		if from.Endpoints != nil {
			row.Endpoints = from.endpoints(s)
		}
		t.Services = append(t.Services, row)
	}
	t.sort()
	return t
}

// of returns the counts of a Service.
func (t TopCounts) of(s *track.View) (n uint64) {
	for _, p := range s.Ports {
		n += t.ofPort(p)
		for i := range p.Frontends {
			n += t.at(p, i)
		}
	}
	return n
}

// at is what was counted at a frontend of a port, and ofPort what was at none of its own.
func (t TopCounts) at(p *model.Port, i int) uint64 {
	return t[frontendKey{proto: p.ID.Proto, at: p.Frontends[i].At}]
}

func (t TopCounts) ofPort(p *model.Port) uint64 { return t[frontendKey{proto: p.ID.Proto, port: p.ID}] }

// frontends are the counts of each; none of a port whose frontends are counted together.
func (t TopCounts) frontends(s *track.View) (all []TopAddress) {
	for _, p := range s.Ports {
		if t.ofPort(p) > 0 {
			continue
		}
		for i := range p.Frontends {
			f := frontend(p, &p.Frontends[i])
			all = append(all, TopAddress{Address: f.Address, Proto: f.Proto, New: t.at(p, i)})
		}
	}
	return all
}

func (t *Top) sort() {
	slices.SortFunc(t.Services, func(a, b TopService) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(b.New, a.New), b.Traffic.compare(a.Traffic), strings.Compare(a.Service, b.Service))
	})
}

// Since sets the rates since an earlier look: what had no connections then is not in it.
// A count that is less than before began again.
func (t *Top) Since(before Top) {
	seconds := t.At.Sub(before.At).Seconds()
	if seconds <= 0 {
		return
	}
	old := map[string]TopService{}
	for _, s := range before.Services {
		old[s.Service] = s
	}
	for i := range t.Services {
		s := &t.Services[i]
		was := old[s.Service]
		s.PerSecond = rate(was.New, s.New, seconds)
		s.Traffic.since(was.Traffic, seconds)
		ends := map[[2]string]TopAddress{}
		for _, e := range was.Endpoints {
			ends[[2]string{e.Address, e.Proto}] = e
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			was := ends[[2]string{e.Address, e.Proto}]
			e.PerSecond = rate(was.New, e.New, seconds)
			e.Traffic.since(was.Traffic, seconds)
		}
		sortAddresses(s.Endpoints)
	}
	t.sort()
}

// since sets the rate of bytes. Less than before: connections have ended, and with them their count.
func (t *TopTraffic) since(was *TopTraffic, seconds float64) {
	if was == nil {
		was = &TopTraffic{}
	}
	if t != nil {
		t.PerSecond = rate(was.Bytes, t.Bytes, seconds)
	}
}

// rate is 0 for a count that began again.
func rate(was, is uint64, seconds float64) float64 {
	if was > is {
		return 0
	}
	return float64(is-was) / seconds
}
