package model

import (
	"fmt"
	"net/netip"
)

// Reason says why policy decided as it did. It goes with every Action and every
// Problem, so that a user can be told, in the same words on every system.
type Reason uint8

// The reasons. Why an Action is what it is:
const (
	WhyClusterEndpoints     Reason = iota // balanced over ready endpoints of the whole cluster
	WhyLocalEndpoints                     // policy Local: balanced over this node's endpoints
	WhyZoneHints                          // topology hints: endpoints meant for this zone
	WhyNodeHints                          // topology hints: endpoints meant for this node
	WhyTerminatingEndpoints               // none is ready: those that still serve while they terminate
	WhyShortCircuit                       // policy Local does not bind this node's own pods and processes
	WhyNoEndpoints                        // nothing serves anywhere: refuse at once
	WhyNoLocalEndpoints                   // policy Local, and only other nodes have endpoints: stay silent
	WhyOutsideRanges                      // the client is in none of the source ranges
	WhyNoSuchPort                         // a cluster IP, but none of its ports
	WhyNotOurs                            // no Service has this address
	WhyUnallocated                        // nor has anybody else: it is for cluster IPs, and dropped

	// Why something was refused or left out:

	WhyFrontendTaken     // another, older Service has this address and port
	WhyBadAddress        // an address that can never be an endpoint or a virtual IP
	WhyOwnFrontend       // an endpoint that is the Service's own address: a loop
	WhyBadRange          // a source range that is no CIDR
	WhyNoTargetPort      // no slice has a port of this name and protocol
	WhyDuplicateEndpoint // the same address and port twice, with different conditions
	WhyInvalid           // not what Kubernetes defines: an unknown field, a wrong type, a bad name
	WhyUnsupported       // this mode or system cannot do it
	WhyNoNode            // what the Node object says is needed, and there is none
	WhyOtherProxy        // another proxy answers for the same addresses
	WhySharedRange       // a range of cluster IPs that the node or its pods have addresses in, too
	WhyTooLarge          // more than one Service may cost
	WhyRestart           // a change of the configuration that a running proxy cannot take over
	WhyOtherFamily       // addresses of an IP family that this node does not have
	WhyFull              // a bound on what is kept is reached
	WhyConnectionLimit   // all connections that the descriptors of this process allow one Service port
	WhyNodeAddress       // an address, or address and port, of this node itself
	WhyAPIServer         // an address of the API server
	WhyServiceRange      // an external address in a range of cluster IPs
	WhyPodRange          // an external address in a range of pods
	WhyNotAllowed        // an external IP that the administrator has not allowed
	WhyClosed            // loadBalancerSourceRanges lets nobody in
)

var reasons = [...]struct{ name, text string }{
	WhyClusterEndpoints:     {"ClusterEndpoints", "balanced over the cluster's ready endpoints"},
	WhyLocalEndpoints:       {"LocalEndpoints", "policy Local: balanced over this node's endpoints only"},
	WhyZoneHints:            {"ZoneHints", "topology hints: endpoints meant for this node's zone"},
	WhyNodeHints:            {"NodeHints", "topology hints: endpoints meant for this node"},
	WhyTerminatingEndpoints: {"TerminatingEndpoints", "no endpoint is ready: those that still serve while terminating"},
	WhyShortCircuit:         {"ShortCircuit", "externalTrafficPolicy Local does not bind this node's own pods and processes"},
	WhyNoEndpoints:          {"NoEndpoints", "no endpoint serves this port: refused"},
	WhyNoLocalEndpoints:     {"NoLocalEndpoints", "policy Local and no endpoint on this node: dropped"},
	WhyOutsideRanges:        {"OutsideRanges", "the client is outside loadBalancerSourceRanges: dropped"},
	WhyNoSuchPort:           {"NoSuchPort", "the cluster IP has no such port: refused"},
	WhyNotOurs:              {"NotOurs", "no Service has this address: left alone"},
	WhyUnallocated:          {"Unallocated", "an address for cluster IPs that no Service has: dropped"},
	WhyFrontendTaken:        {"FrontendTaken", "another Service already has this address and port"},
	WhyBadAddress:           {"BadAddress", "not usable as an endpoint or virtual IP"},
	WhyOwnFrontend:          {"OwnFrontend", "the endpoint is an address of its own Service: a loop"},
	WhyBadRange:             {"BadRange", "not a CIDR"},
	WhyNoTargetPort:         {"NoTargetPort", "no EndpointSlice of the Service has a port of this name and protocol"},
	WhyDuplicateEndpoint:    {"DuplicateEndpoint", "the same endpoint twice with different conditions; the better one is used"},
	WhyInvalid:              {"Invalid", "not valid"},
	WhyUnsupported:          {"Unsupported", "this mode cannot do it"},
	WhyNoNode:               {"NoNode", "the Node object of this machine is not known"},
	WhyOtherProxy:           {"OtherProxy", "another proxy answers for the same addresses"},
	WhySharedRange:          {"SharedRange", "not for cluster IPs alone: addresses that no Service has are left alone"},
	WhyTooLarge:             {"TooLarge", "beyond the limits of one Service, which keep it from holding up others"},
	WhyRestart:              {"RestartNeeded", "takes effect with the next start"},
	WhyOtherFamily:          {"OtherFamily", "only addresses of an IP family that this node does not have"},
	WhyFull:                 {"Full", "no room for more"},
	WhyConnectionLimit:      {"ConnectionLimit", "as many as this proxy's limit on file descriptors allows one Service port"},
	WhyNodeAddress:          {"NodeAddress", "an address of this node cannot be a Service's"},
	WhyAPIServer:            {"APIServerAddress", "an address of the API server cannot be a Service's"},
	WhyServiceRange:         {"InServiceCIDR", "addresses of a ServiceCIDR are for cluster IPs alone"},
	WhyPodRange:             {"InPodCIDR", "addresses of pods cannot be a Service's"},
	WhyNotAllowed:           {"NotAllowed", "not among the allowed external IPs"},
	WhyClosed:               {"Closed", "loadBalancerSourceRanges has no range of this family: closed to all clients"},
}

// String returns the reason's name, such as "NoEndpoints": stable, for
// machines.
func (r Reason) String() string { return reasons[r].name }

// Text returns the reason as a phrase for people.
func (r Reason) Text() string { return reasons[r].text }

// Problem is something that was refused, skipped or cannot be done, in a form
// that reaches the user: a log line, a metric, an Event and `tandem status`.
type Problem struct {
	Object string // "Service default/web", "EndpointSlice default/web-x7k2p"
	Where  string // "file:line", or empty
	Why    Reason
	Detail string // what exactly: the address, the other Service, ...
	Unfit  bool   // no load balancer shall send traffic here while it lasts
}

// MaxProblems bounds the problems of one object: it may have thousands of ports or
// endpoints, and nobody reads a thousand lines that say the same.
const MaxProblems = 20

// More says in the last of one object's problems how many there are beside them.
func More(ps []Problem, more int) []Problem {
	if more > 0 {
		ps[len(ps)-1].Detail += fmt.Sprintf(", and %d more problems", more)
	}
	return ps
}

// String returns the problem as one line.
func (p Problem) String() string {
	s := p.Object + ": " + p.Detail + ": " + p.Why.Text()
	if p.Where != "" {
		return p.Where + ": " + s
	}
	return s
}

// Gap is something a backend cannot do for a port on this system. The rest of
// the port works.
type Gap struct {
	Frontend netip.AddrPort // the front it is about; the zero value for the whole port
	Detail   string
	// Source says that nothing is missing but the client's address: endpoints
	// see one of this host where Action.SNAT says otherwise. That is how a whole
	// mode works: it is said once, and makes no Service Partial.
	Source bool
}

// OwnGaps returns the gaps that a port does not share with all of its mode.
func OwnGaps(all []Gap) (own []Gap) {
	for _, g := range all {
		if !g.Source {
			own = append(own, g)
		}
	}
	return own
}
