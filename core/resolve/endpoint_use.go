// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

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
				switch {
				case u.Used:
					counted[u.Addr] = true
					u.Why = usedFor(port, u.Addr)
				default:
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
		return "in another slice, or twice, with conditions that are as good or better"
	case slices.ContainsFunc(port.Frontends, func(f model.Frontend) bool { return f.At == u.Addr }):
		return model.WhyOwnFrontend.Text()
	case !ready && u.State.Has(model.Serving|model.Terminating):
		return "terminating, and others are ready"
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
		return "runs on " + nodeText(u.Node) + ", and policy Local or a node's hint takes this node's only"
	case len(port.Frontends) == 0 || len(used) == 0:
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
