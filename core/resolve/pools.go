// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// pools are the two sets of endpoints that policy chooses from. One without
// endpoints is nil. When both have the same members they are one.
type pools struct {
	cluster, local       *model.Pool
	whyCluster, whyLocal model.Reason
	ejected              []endpoint // left out of cluster as they do not answer
	idle                 []int      // as in chosen
}

// choosePools makes the pools (KEP-1669, KEP-2086).
//
// The cluster's pool has the ready endpoints, narrowed by topology hints; when
// none is ready anywhere, those that still serve while they terminate. The
// local pool is chosen in the same way among this node's endpoints alone, and
// independently: a node whose last endpoint terminates continues to serve policy
// Local though other nodes have ready ones. Hints never narrow the local pool.
// Endpoints that have stopped answering are ejected last, and only in the
// cluster's pool.
//
// Behind a route this is done for the endpoints of each of its backends.
func (r *Result) choosePools(host *model.Host, svc *model.Service, all []endpoint, route *Route) pools {
	var c chosen
	if route != nil {
		c = route.choose(host, svc, all)
	} else {
		c = choose(host, svc, all)
	}
	p := pools{
		cluster: r.pool(svc, c.cluster), local: r.pool(svc, c.local),
		whyCluster: c.whyCluster, whyLocal: c.whyLocal, ejected: c.ejected, idle: c.idle,
	}
	if p.local.Equal(p.cluster) {
		p.local = p.cluster
	}
	return p
}

func (r *Result) pool(svc *model.Service, from []endpoint) *model.Pool {
	if len(from) == 0 {
		return nil
	}
	p := &model.Pool{Endpoints: make([]model.Endpoint, len(from))}
	for i, e := range from {
		p.Endpoints[i] = model.Endpoint{Addr: e.addr, Local: e.local, NodeUnknown: e.nodeUnknown}
	}
	if most := r.index.mostSlots; len(from) <= most {
		weigh(p, from, most)
	} else if slices.ContainsFunc(from, func(e endpoint) bool { return e.share != from[0].share }) {
		r.Problem(svc, model.WhyTooLarge, "%d endpoints, weights are for %d at most: shared evenly", len(from), most)
	}
	return p
}

// draining returns the endpoints that serve but are in no pool, for whatever reason: terminating
// ones while others are ready, ones that are not ready but serve, those of weight 0, and those that hints
// or a policy leave to other nodes. They keep their flows (core/flows). Those that have
// stopped answering keep nothing.
func draining(all []endpoint, p pools) (addrs []netip.AddrPort) {
	if p.cluster != nil && len(p.cluster.Endpoints) == len(all) {
		return nil // it has them all, as it has none twice
	}
	chosen := make(map[netip.AddrPort]bool, len(all))
	for _, pool := range []*model.Pool{p.cluster, p.local} {
		if pool == nil {
			continue
		}
		for _, e := range pool.Endpoints {
			chosen[e.Addr] = true
		}
	}
	for _, e := range p.ejected {
		chosen[e.addr] = true
	}
	for _, e := range all {
		if e.state.Has(model.Serving) && !chosen[e.addr] {
			addrs = append(addrs, e.addr)
			chosen[e.addr] = true // several backends may have it
		}
	}
	return addrs
}

// chosen are the endpoints of the two pools, and why.
type chosen struct {
	cluster, local       []endpoint
	whyCluster, whyLocal model.Reason
	ejected              []endpoint
	idle                 []int // backends of a route with a weight and without an endpoint
}

func choose(host *model.Host, svc *model.Service, all []endpoint) chosen {
	c := chosen{whyCluster: model.WhyClusterEndpoints, whyLocal: model.WhyLocalEndpoints}
	if c.cluster = filter(all, ready); len(c.cluster) > 0 {
		c.cluster, c.whyCluster = applyHints(host, svc.Choice.Spill, c.cluster)
		if c.cluster, c.ejected = eject(c.cluster); len(c.ejected) > 0 {
			c.whyCluster = model.WhyUnanswered
		}
	} else {
		c.cluster, c.whyCluster = filter(all, terminating), model.WhyTerminatingEndpoints
	}
	c.local = filter(all, func(e *endpoint) bool { return e.local && ready(e) })
	if len(c.local) == 0 {
		c.local, c.whyLocal = filter(all, func(e *endpoint) bool { return e.local && terminating(e) }), model.WhyTerminatingEndpoints
	}
	return c
}

// applyHints applies topology hints to ready endpoints (KEP-2433, KEP-3015,
// KEP-4444): those meant for this node, else those meant for its zone, else
// all. Hints count only when every ready endpoint has them, because a half
// hinted set means that the controller is still at work, and only when they
// leave at least one endpoint.
func applyHints(host *model.Host, s model.Spill, all []endpoint) ([]endpoint, model.Reason) {
	nodes := func(h *model.Hints) []string { return h.Nodes }
	zones := func(h *model.Hints) []string { return h.Zones }
	if meant, ok := hintedFor(host.Name, all, nodes); ok {
		return meant, model.WhyNodeHints
	}
	if meant, ok := hintedFor(host.Zone, all, zones); ok {
		if shared, spills := spill(s, host.Zone, all, meant); spills {
			return shared, model.WhyZoneSpill
		}
		return meant, model.WhyZoneHints
	}
	return all, model.WhyClusterEndpoints
}

// hintedFor returns the endpoints that hint at a place; ok is false when the
// hints cannot be followed.
func hintedFor(place string, all []endpoint, hints func(*model.Hints) []string) (meant []endpoint, ok bool) {
	if place == "" {
		return nil, false
	}
	for _, e := range all {
		if e.hints == nil || len(hints(e.hints)) == 0 {
			return nil, false
		}
		if slices.Contains(hints(e.hints), place) {
			meant = append(meant, e)
		}
	}
	return meant, len(meant) > 0
}

// spill lets connections of a zone reach other zones, too, where the endpoints
// that are meant for it would get more than their share (kubernetes issue 56440).
// It returns the endpoints with their shares; ok is false where the zone keeps
// its connections.
//
// Hints state where endpoints are to be used, not how much each zone
// sends. So zones are taken to send alike, and the fair share is that of an
// endpoint if all served all zones. Then no endpoint of any zone gets more than
// Above times that share: the excess of a zone is shared by the others in
// proportion to what they have left. All nodes of a zone come to the same
// result, which changes with the endpoints only: nothing that is measured feeds
// back into it.
func spill(s model.Spill, zone string, all, meant []endpoint) (shared []endpoint, ok bool) {
	if len(meant) < s.Floor && len(meant) < len(all) {
		return all, true
	}
	zones, weights := zoneWeights(all)
	total, own := 0.0, weights[zone]
	for _, e := range all {
		total += e.share
	}
	sent := 1 / float64(len(zones)) // by each zone
	most := func(w float64) float64 { return s.Above * w / total }
	if s.Above == 0 || sent <= most(own) {
		return nil, false
	}
	spare, sum := map[string]float64{}, 0.0
	for _, z := range zones {
		if left := most(weights[z]) - sent; left > 0 {
			spare[z] = left
			sum += left
		}
	}
	kept := most(own) / sent
	for _, e := range all {
		share := 0.0
		for _, z := range e.hints.Zones {
			if z == zone {
				share = kept * e.share / own
				break
			}
			if spare[z] > 0 {
				share += (1 - kept) * spare[z] / sum * e.share / weights[z]
			}
		}
		if e.share = share; share > 0 {
			shared = append(shared, e)
		}
	}
	return shared, true
}

// zoneWeights returns the zones that endpoints are meant for, in the order in which
// they are met, and the weight of the endpoints of each.
func zoneWeights(all []endpoint) (zones []string, weights map[string]float64) {
	weights = map[string]float64{}
	for _, e := range all {
		for _, z := range e.hints.Zones {
			if _, known := weights[z]; !known {
				zones = append(zones, z)
			}
			weights[z] += e.share
		}
	}
	return zones, weights
}

// eject divides the endpoints of the cluster's pool into those that get new
// connections and those that are ejected, because they have stopped answering.
// At most half of a pool is ejected, the first by address, and so never its last
// endpoint: a suspicion against most of a pool is more likely wrong than right, and the
// rest could not carry the load. Local endpoints are never ejected.
func eject(pool []endpoint) (kept, ejected []endpoint) {
	silent := func(e endpoint) bool { return e.state.Has(model.Unanswered) && !e.local }
	if !slices.ContainsFunc(pool, silent) {
		return pool, nil
	}
	kept = make([]endpoint, 0, len(pool))
	for _, e := range pool {
		if silent(e) && len(ejected) < len(pool)/2 {
			ejected = append(ejected, e)
		} else {
			kept = append(kept, e)
		}
	}
	return kept, ejected
}

// MarkUnanswered returns slices whose endpoints that are silent suspects have the state
// model.Unanswered.
func MarkUnanswered(from []*model.Slice, suspects model.Suspects) []*model.Slice {
	if len(suspects) == 0 {
		return from
	}
	return model.MarkEndpoints(from, func(e model.SliceEndpoint) model.SliceEndpoint {
		if back, is := suspects[e.Addr]; is && back.IsZero() {
			e.State |= model.Unanswered
		}
		return e
	})
}

// weigh gives the endpoints of a pool their weights: their shares, where those are
// whole numbers, else by fewestSlots. It makes at most so many slots.
func weigh(p *model.Pool, from []endpoint, most int) {
	if !slices.ContainsFunc(from, func(e endpoint) bool { return e.share != from[0].share }) {
		return
	}
	weights, unit := tenths(from)
	if weights == nil {
		weights = whole(from)
	}
	if weights == nil {
		weights = fewestSlots(from, most)
	}
	for i, w := range weights {
		p.Endpoints[i].Weight = w
	}
	p.WeighBy(unit, most)
}

// whole returns the shares of endpoints as weights; nil if some are no whole numbers,
// or too large.
func whole(from []endpoint) (weights []uint16) {
	for _, e := range from {
		if e.share != math.Trunc(e.share) || e.share > math.MaxUint16 {
			return nil
		}
		weights = append(weights, uint16(e.share))
	}
	return weights
}

// tenths returns the weights of endpoints while some are new and have a part of their
// shares (model.SliceEndpoint), and the weight of a slot: from step to step, the others
// have as many slots as before. Weights are nil if shares are no whole numbers; then a
// slot is a hundredth.
func tenths(from []endpoint) (weights []uint16, unit int) {
	if !slices.ContainsFunc(from, func(e endpoint) bool { return e.warm > 0 }) {
		return nil, 0
	}
	divisor, largest := 0, 0
	for _, e := range from {
		full := e.share
		if e.warm > 0 {
			full = math.Round(full*10/float64(e.warm)*1e6) / 1e6
		}
		if full != math.Trunc(full) {
			return nil, 1
		}
		divisor, largest = model.GCD(divisor, int(full)), max(largest, int(full))
	}
	if largest/divisor*10 > math.MaxUint16 {
		return nil, 1
	}
	for _, e := range from {
		weights = append(weights, uint16(max(1, math.Round(e.share*10/float64(divisor)))))
	}
	return weights, 1
}

// fewestSlots returns weights for shares that are no whole numbers: their sum is the
// smallest number of slots that has each share within half a percent of it. Where that
// needs too many slots, weights are as fine as they can be.
func fewestSlots(from []endpoint, most int) []uint16 {
	const tolerance, distinct = 0.005, 64 // more different shares are not tried
	counts, total, largest := map[float64]int{}, 0.0, 0.0
	for _, e := range from {
		counts[e.share]++
		total += e.share
		largest = max(largest, e.share)
	}
	fits := func(perSlot float64) bool {
		for share := range counts {
			n := share / perSlot
			if math.Round(n) < 1 || math.Abs(n-math.Round(n)) > tolerance*n {
				return false
			}
		}
		return true
	}
	perSlot := largest / math.MaxUint16
	if len(counts) <= distinct {
		for n := len(from); n <= most; n++ {
			if fits(total / float64(n)) {
				perSlot = total / float64(n)
				break
			}
		}
	}
	weights := make([]uint16, len(from))
	for i, e := range from {
		weights[i] = uint16(max(1, math.Round(e.share/perSlot)))
	}
	return weights
}

// schedule returns the scheduler of a port, and makes the tables of its pools if it
// is to choose by them. A pool of one endpoint needs none.
func (r *Result) schedule(svc *model.Service, p pools) model.Scheduler {
	if svc.Choice.Scheduler != model.Maglev {
		return svc.Choice.Scheduler
	}
	var several []*model.Pool
	for _, pool := range []*model.Pool{p.cluster, p.local} {
		if pool != nil && len(pool.Endpoints) > 1 && !slices.Contains(several, pool) {
			several = append(several, pool)
		}
	}
	if why := r.noTables(several); why != "" {
		r.Problem(svc, model.WhyTooLarge, "%s: chosen at random", why)
		return model.DefaultScheduler
	}
	for _, pool := range several {
		if like := r.hashedLike(pool); like != nil {
			pool.Table = like.Table // shared, and not written to again: resolve.Reslot leaves pools with a table out
			continue
		}
		pool.Hash()
		r.hashed = append(r.hashed, pool)
	}
	return model.Maglev
}

// maxHashed is how many endpoints the tables of one Service may have together, which
// differ from port to port only if the endpoints do: as many as two IP families have.
const maxHashed = 2 * model.MaglevSlots

// noTables reports why pools get no tables; "" if they do.
func (r *Result) noTables(several []*model.Pool) string {
	endpoints := 0
	for _, pool := range r.hashed {
		endpoints += len(pool.Endpoints)
	}
	for _, pool := range several {
		if n := len(pool.Endpoints); n > model.MaglevSlots {
			return fmt.Sprintf("%d endpoints, maglev has room for %d", n, model.MaglevSlots)
		}
		if r.index.mostSlots < model.MaglevSlots {
			return fmt.Sprintf("%d frontends (ports x addresses), maglev has room for %d", r.index.frontends, MaxEntries/model.MaglevSlots)
		}
		if r.hashedLike(pool) == nil {
			endpoints += len(pool.Endpoints)
		}
	}
	if endpoints > maxHashed {
		return fmt.Sprintf("ports with different endpoints have %d in total, maglev has room for %d", endpoints, maxHashed)
	}
	return ""
}

// hashedLike returns a pool that has the table of another one; nil if there is none yet.
func (r *Result) hashedLike(pool *model.Pool) *model.Pool {
	if i := slices.IndexFunc(r.hashed, pool.HashesLike); i >= 0 {
		return r.hashed[i]
	}
	return nil
}

// Slots returns the endpoints of a frontend's installed slots for an origin, in order;
// nil when it has none. It is how a data plane's numbering survives a restart.
type Slots func(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort

// Reslot gives the pools of a freshly resolved port the slot order of the port
// it replaces or, when there is none, the installed one. It must be called
// before the port is handed on.
func Reslot(port, old *model.Port, installed Slots) {
	if port.Scheduler == model.Maglev { // its slots are the same everywhere
		return
	}
	before := model.IndexFrontends(old)
	for _, pool := range port.Pools() {
		if order := predecessor(port, pool, old, &before, installed); len(order) > 0 {
			pool.Reslot(order)
		}
	}
}

// predecessor finds the order of the pool that served the same frontend and origin
// before.
func predecessor(port *model.Port, pool *model.Pool, old *model.Port, before *model.Index[netip.AddrPort, model.Frontend], installed Slots) []netip.AddrPort {
	for i := range port.Frontends {
		f := &port.Frontends[i]
		for origin, act := range slices.Backward(f.On[:]) { // FromOutside first, whose answer is most often that of all
			if act.Pool != pool {
				continue
			}
			if old == nil {
				if order := installed(port.ID.Proto, f.At, model.Origin(origin)); len(order) > 0 {
					return order
				}
				continue
			}
			if was := before.Find(f.At, i); was != nil && was.On[origin].Pool != nil {
				return addresses(was.On[origin].Pool)
			}
		}
	}
	return nil
}

func addresses(p *model.Pool) []netip.AddrPort {
	addrs := make([]netip.AddrPort, p.Size())
	for i := range addrs {
		addrs[i] = p.Slot(i).Addr
	}
	return addrs
}

// EndpointUse states whether an endpoint of a slice takes new connections of a port, and
// if not, why.
type EndpointUse struct {
	Port  model.PortID
	Slice model.SliceName
	Addr  netip.AddrPort // port 0 where the slice has none for the port
	Node  string
	State model.EndpointState
	Used  bool
	Why   string // for people; why not, or which part of the policy it serves
}

// EndpointUses lists every endpoint of the slices of a Service, for each port that
// they could serve, in the order of the slices, which must be marked as those that the
// ports were resolved from (MarkUnanswered). Use is read off the resolved
// ports, so it is policy's own answer; the reasons are for unused endpoints.
func EndpointUses(host *model.Host, from []*model.Slice, ports []*model.Port) (all []EndpointUse) {
	for _, port := range ports {
		used := map[netip.AddrPort]model.Endpoint{}
		for _, pool := range port.Pools() {
			for _, e := range pool.Endpoints {
				used[e.Addr] = e
			}
		}
		counted := map[netip.AddrPort]bool{}
		for _, slice := range from {
			if slice.Family != port.ID.Family {
				continue
			}
			number, named := numberOf(slice, port.ID)
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				u := EndpointUse{Port: port.ID, Slice: slice.Name, Addr: netip.AddrPortFrom(e.Addr, number), Node: e.Node, State: e.State}
				_, u.Used = used[u.Addr]
				u.Used = u.Used && named && !counted[u.Addr] && best(from, port.ID, u)
				if u.Used {
					counted[u.Addr] = true
					u.Why = usedFor(port, u.Addr)
				} else {
					u.Why = whyUnused(host, port, slice, u, named, used)
				}
				all = append(all, u)
			}
		}
	}
	return all
}

// numberOf is the number that a slice gives to a port.
func numberOf(slice *model.Slice, id model.PortID) (number uint16, named bool) {
	for _, p := range slice.Ports {
		if p.Name == id.Name && p.Proto == id.Proto {
			return p.Port, true
		}
	}
	return 0, false
}

// best reports whether no slice has the same endpoint with better conditions: of
// several the best counts.
func best(from []*model.Slice, id model.PortID, u EndpointUse) bool {
	for _, slice := range from {
		number, named := numberOf(slice, id)
		if !named || number != u.Addr.Port() {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Addr == u.Addr.Addr() && conditionRank(e.State) > conditionRank(u.State) {
				return false
			}
		}
	}
	return true
}

// usedFor reports which senders may reach an endpoint.
func usedFor(port *model.Port, at netip.AddrPort) string {
	reaches := func(act model.Action) bool {
		return act.Pool != nil && slices.ContainsFunc(act.Pool.Endpoints, func(e model.Endpoint) bool { return e.Addr == at })
	}
	var some []model.Reason
	all := true
	for i := range port.Frontends {
		for _, act := range port.Frontends[i].On {
			if reaches(act) {
				some = append(some, act.Why)
			} else {
				all = false
			}
		}
	}
	if all {
		return some[0].Text()
	}
	return some[0].Text() + "; not for every frontend and sender"
}

// whyUnused finds the reason by the conditions that policy looks at, in its order.
func whyUnused(host *model.Host, port *model.Port, slice *model.Slice, u EndpointUse, named bool, used map[netip.AddrPort]model.Endpoint) string {
	_, elsewhere := used[u.Addr]
	ready := u.State.Has(model.Ready)
	switch bad := unusableEndpoint(host, u.Addr.Addr()); {
	case !named:
		return "its slice has no port named " + fmt.Sprintf("%q/%s", port.ID.Name, port.ID.Proto)
	case bad != "":
		return model.WhyBadAddress.Text() + " (" + bad + ")"
	case elsewhere:
		return "duplicate: an entry with equal or better conditions is used"
	case slices.ContainsFunc(port.Frontends, func(f model.Frontend) bool { return f.At == u.Addr }):
		return model.WhyOwnFrontend.Text()
	case !ready && u.State.Has(model.Serving|model.Terminating):
		return "terminating; other endpoints are ready"
	case !ready && u.State.Has(model.Terminating):
		return "terminating, and does not serve any more"
	case !ready:
		return "not ready"
	case slice.Weighted && slice.Weight == 0:
		return "its slice has weight 0"
	case u.State.Has(model.Unanswered) && passesOver(port):
		return "ejected: unresponsive"
	case port.Route != nil:
		return port.Route.String() + " has this port: its connections go to the backends of the route"
	case len(used) > 0 && allLocal(used) && !(u.Node != "" && u.Node == host.Name):
		return "runs on " + nodeText(u.Node) + ", excluded by policy Local or node hints"
	case len(port.Frontends) == 0:
		return "the port has no frontend"
	case len(used) == 0:
		return "no frontend of the port uses endpoints that are not on this node"
	}
	return "ready; topology hints leave it to other zones or nodes, or the Service has too many endpoints"
}

// passesOver reports whether a pool of the port lacks endpoints that do not answer.
func passesOver(port *model.Port) bool {
	return slices.ContainsFunc(port.Frontends, func(f model.Frontend) bool {
		return slices.ContainsFunc(f.On[:], func(a model.Action) bool { return a.Why == model.WhyUnanswered })
	})
}

func allLocal(used map[netip.AddrPort]model.Endpoint) bool {
	for _, e := range used {
		if !e.Local {
			return false
		}
	}
	return true
}

func nodeText(name string) string {
	if name == "" {
		return "no known node"
	}
	return "node " + name
}
