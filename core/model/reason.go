// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"strings"
)

// Reason states why policy decided as it did. Every Action has one, and every
// Problem, so that users see the same words on every system.
type Reason uint8

// The reasons. Why an Action is what it is:
const (
	WhyClusterEndpoints     Reason = iota // balanced over ready endpoints of the whole cluster
	WhyLocalEndpoints                     // policy Local: balanced over this node's endpoints
	WhyZoneHints                          // topology hints: endpoints meant for this zone
	WhyNodeHints                          // topology hints: endpoints for this node
	WhyZoneSpill                          // topology hints: too few endpoints for this zone, others' too
	WhyTerminatingEndpoints               // none is ready: terminating endpoints that still serve are used
	WhyUnanswered                         // balanced without endpoints that have stopped answering
	WhyRoute                              // balanced over the backends of a route of the Gateway API
	WhyShortCircuit                       // policy Local does not bind this node's own pods and processes
	WhyNoEndpoints                        // no endpoint anywhere: reject
	WhyNoLocalEndpoints                   // policy Local, and only other nodes have endpoints: drop
	WhyOutsideRanges                      // the client is in none of the source ranges
	WhyNoSuchPort                         // a cluster IP, but none of its ports
	WhyNotOurs                            // no Service has this address
	WhyUnallocated                        // unallocated address in a ServiceCIDR: dropped

	// Why something was rejected or left out:

	WhyFrontendTaken     // another, older Service has this address and port
	WhyDuplicateFrontend // this Service has this address and port twice
	WhyBadAddress        // an address that can never be an endpoint or a virtual IP
	WhyOwnFrontend       // an endpoint that is the Service's own address: a loop
	WhyBadRange          // a source range that is no CIDR
	WhyNoTargetPort      // no slice has a port of this name and protocol
	WhyInvalid           // not what Kubernetes defines: an unknown field, a wrong type, a bad name
	WhyUnsupported       // this mode or system cannot do it
	WhyNoNode            // the Node object is needed, and there is none
	WhyOtherProxy        // another proxy handles the same addresses
	WhySharedRange       // a range of cluster IPs that the node or its pods have addresses in, too
	WhyTooLarge          // more than one Service, or one namespace, may cost
	WhyRestart           // a change of the configuration that a running proxy cannot apply
	WhyOtherFamily       // addresses of an IP family that this node does not have
	WhyFull              // a bound on what is kept is reached
	WhyDegraded          // objects of the data plane are there and have no effect
	WhyConnectionLimit   // all connections or sessions that the descriptors or buffers of this process allow one Service port
	WhyNodeAddress       // an address, or address and port, of this node itself
	WhyAPIServer         // an address of the API server
	WhyServiceRange      // an external address in a range of cluster IPs
	WhyPodRange          // an external address in a range of pods
	WhyNotAllowed        // an external IP that the administrator has not allowed
	WhyClosed            // loadBalancerSourceRanges allows no client
	WhyRouteBackend      // a backend of a route that cannot be one
	WhyRouteShadowed     // an older route has this port
	WhyBalancerAddress   // an external IP that is a load balancer IP of another namespace
	WhyEndpointAddress   // an external IP that is an endpoint of another namespace
	WhyOtherNode         // an external IP that is an address of another node
	WhyNoSourceVIP       // no address is reserved that this node reaches pods of other nodes from
)

var reasons = [...]struct{ name, text string }{
	WhyClusterEndpoints:     {"ClusterEndpoints", "balanced over ready endpoints of the cluster"},
	WhyLocalEndpoints:       {"LocalEndpoints", "traffic policy Local: balanced over endpoints on this node"},
	WhyZoneHints:            {"ZoneHints", "topology hints: endpoints for this node's zone"},
	WhyNodeHints:            {"NodeHints", "topology hints: endpoints for this node"},
	WhyZoneSpill:            {"ZoneSpillOver", "topology hints: endpoints for this node's zone are too few, using other zones' too"},
	WhyTerminatingEndpoints: {"TerminatingEndpoints", "no ready endpoints: using serving terminating endpoints"},
	WhyRoute:                {"Route", "balanced over the weighted backends of a Gateway API route"},
	WhyUnanswered:           {"Unanswered", "endpoints have stopped answering"},
	WhyShortCircuit:         {"ShortCircuit", "externalTrafficPolicy Local does not apply to this node's own pods and processes"},
	WhyNoEndpoints:          {"NoEndpoints", "no endpoints: rejected"},
	WhyNoLocalEndpoints:     {"NoLocalEndpoints", "traffic policy Local and no endpoint on this node: dropped"},
	WhyOutsideRanges:        {"OutsideRanges", "client not in loadBalancerSourceRanges: dropped"},
	WhyNoSuchPort:           {"NoSuchPort", "no such port on this cluster IP: rejected"},
	WhyNotOurs:              {"NotOurs", "not a Service address: passed"},
	WhyUnallocated:          {"Unallocated", "in a ServiceCIDR but not allocated to a Service: dropped"},
	WhyFrontendTaken:        {"FrontendTaken", "another Service already has this address and port"},
	WhyDuplicateFrontend:    {"DuplicateFrontend", "listed twice in this Service; using the first"},
	WhyBadAddress:           {"BadAddress", "not usable as an endpoint or virtual IP"},
	WhyOwnFrontend:          {"OwnFrontend", "endpoint is an address of its own Service (loop)"},
	WhyBadRange:             {"BadRange", "invalid CIDR"},
	WhyNoTargetPort:         {"NoTargetPort", "no EndpointSlice of the Service has a port of this name and protocol"},
	WhyInvalid:              {"Invalid", "invalid"},
	WhyUnsupported:          {"Unsupported", "not supported by this mode"},
	WhyNoNode:               {"NoNode", "Node object of this machine not found"},
	WhyOtherProxy:           {"OtherProxy", "another proxy handles the same addresses"},
	WhySharedRange:          {"SharedRange", "not exclusive to cluster IPs: unallocated addresses are passed"},
	WhyTooLarge:             {"TooLarge", "exceeds the limits of one Service, or of its namespace"},
	WhyRestart:              {"RestartNeeded", "takes effect at the next start"},
	WhyOtherFamily:          {"OtherFamily", "no address of an IP family that this node has"},
	WhyFull:                 {"Full", "capacity reached"},
	WhyDegraded:             {"Degraded", "programmed, but not fully in effect"},
	WhyConnectionLimit:      {"ConnectionLimit", "connection limit of one Service port reached (share of this proxy's file descriptors or buffers)"},
	WhyNodeAddress:          {"NodeAddress", "address belongs to this node"},
	WhyAPIServer:            {"APIServerAddress", "address belongs to the API server"},
	WhyServiceRange:         {"InServiceCIDR", "address lies in a ServiceCIDR, which is reserved for cluster IPs"},
	WhyPodRange:             {"InPodCIDR", "address lies in a pod CIDR, which is reserved for pods"},
	WhyNotAllowed:           {"NotAllowed", "not in the allowed external IPs"},
	WhyClosed:               {"Closed", "loadBalancerSourceRanges has no range of this IP family: all clients dropped"},
	WhyRouteBackend:         {"RouteBackend", "unusable backend; the others get its share"},
	WhyRouteShadowed:        {"RouteShadowed", "superseded by an older route"},
	WhyBalancerAddress:      {"LoadBalancerAddress", "address is a load balancer IP of another namespace"},
	WhyEndpointAddress:      {"EndpointAddress", "address is an endpoint of another namespace"},
	WhyOtherNode:            {"OtherNodeAddress", "address belongs to another node and is left to it"},
	WhyNoSourceVIP:          {"NoSourceVIP", "no source VIP is reserved on this node of an overlay"},
}

// String returns the reason's name, such as "NoEndpoints": stable, for
// machines.
func (r Reason) String() string { return reasons[r].name }

// Text returns the reason as a phrase for people.
func (r Reason) Text() string { return reasons[r].text }

// TextOf is the text of the Reason with a name, or the name itself where it is of another version.
func TextOf(name string) string {
	for _, r := range reasons {
		if r.name == name {
			return r.text
		}
	}
	return name
}

// Measured reports whether a reason is what this node has measured, rather than what objects say together, which
// arrive one after another.
func (r Reason) Measured() bool {
	switch r {
	case WhyUnanswered, WhyFull, WhyDegraded, WhyConnectionLimit:
		return true
	}
	return false
}

// Problem is something that was rejected, skipped or cannot be done, in a form
// that reaches the user: a log line, a metric, an Event and `tandem status`.
type Problem struct {
	Object string // "Service default/web", "EndpointSlice default/web-x7k2p"
	Where  string // "file:line", or empty
	Why    Reason
	Detail string // what exactly: the address, the other Service, ...
	Fix    string // what to do about this one; mostly empty, as the reason has it
	Unfit  bool   // the node is unfit for traffic while it lasts

	// Of is the Service of an EndpointSlice, as far as that can be read; the zero value for
	// other objects.
	Of ServiceName
}

// Service returns the Service that the problem is about, or one of its EndpointSlices; ok is
// false where it is about something else.
func (p Problem) Service() (name ServiceName, ok bool) {
	if p.Of != (ServiceName{}) {
		return p.Of, true
	}
	kind, full, _ := strings.Cut(p.Object, " ")
	name.Namespace, name.Name, ok = strings.Cut(full, "/")
	return name, ok && kind == "Service"
}

// MaxProblems bounds the problems of one object: it may have thousands of ports or
// endpoints.
const MaxProblems = 20

// More adds to the last of one object's problems how many were left out.
func More(ps []Problem, more int) []Problem {
	if more > 0 {
		ps[len(ps)-1].Detail += fmt.Sprintf(", and %d more problems", more)
	}
	return ps
}

// Text describes the problem without its object.
func (p Problem) Text() string {
	s := p.Detail + ": " + p.Why.Text()
	if p.Fix != "" {
		return s + "; " + p.Fix
	}
	return s
}

// String returns the problem as one line.
func (p Problem) String() string {
	s := p.Object + ": " + p.Text()
	if p.Where != "" {
		return p.Where + ": " + s
	}
	return s
}

// Gap is something a backend cannot do for a port on this system. The rest of
// the port works.
type Gap struct {
	Frontend netip.AddrPort // the frontend it is about; the zero value for the whole port
	Detail   string
	// Source means that nothing is missing but the client's address: endpoints
	// see one of this host where Action.SNAT says otherwise.
	Source bool
	// Failover means that endpoints which stop answering are not ejected, as the
	// configuration asks for.
	Failover bool
	// Missing means that the frontend, or the whole port, is not programmed at all.
	Missing bool
	// Unserved means that this is so for a load balancer IP: its health checks must fail
	// here.
	Unserved bool
}

// MissingFamily is the Gap of a port whose IP family is not served, since the node lacks the
// family or a tool for it.
func MissingFamily(f Family, tool string) Gap {
	return Gap{Missing: true, Detail: fmt.Sprintf("%s is not served: this node has no %s, or no %s for it", f, f, tool)}
}

// OfMode reports whether a gap is a property of the whole mode: it is reported once, and makes no
// Service Partial.
func (g Gap) OfMode() bool { return g.Source || g.Failover }

// OwnGaps returns the gaps that a port does not share with all of its mode.
func OwnGaps(all []Gap) (own []Gap) {
	for _, g := range all {
		if !g.OfMode() {
			own = append(own, g)
		}
	}
	return own
}

// State is how a Service is doing on this node.
type State uint8

const (
	Programmed State = iota // everything that it asks for works
	Partial                 // it works, except for the problems reported
	Failing                 // the data plane refuses part of it; retried
	States                  // how many there are
)

// String returns the state's name: stable, for machines.
func (s State) String() string { return [...]string{"Programmed", "Partial", "Failing"}[s] }

// StateOf returns the state of a Service, given whether any of it fails and whether there is
// any other problem with it: of its object, of policy or of the mode.
func StateOf(failing, problems bool) State {
	switch {
	case failing:
		return Failing
	case problems:
		return Partial
	}
	return Programmed
}
