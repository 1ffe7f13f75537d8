// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// The limits of one Service. Users who may write Services and EndpointSlices in one
// namespace must not be able to delay the changes of all others, so the cost of
// one Service is bounded. The goal is 50 ms of one core from its objects to those of
// a data plane (core/track to core/ledger); core/test/conformance logs what each mode
// takes. .github/USAGE.md lists the limits.
const (
	// MaxAddresses is how many cluster, external and load balancer IPs a Service
	// may have. One object of the API has room for 100,000; load balancers give a
	// Service a few, and external IPs are one a node at most.
	MaxAddresses = 1_000

	// MaxPorts is how many ports a Service may have. One object of the API has room
	// for some 20,000; there are 2,768 node ports by default.
	MaxPorts = 2_500

	// MaxFrontends is how many frontends those make: each port on each address, and on
	// the node port of each IP family. A frontend takes a data plane up to seven
	// objects (nftables), so these cost about as much as MaxEntries entries.
	MaxFrontends = 2_500

	// MaxEntries is how many entries of a data plane may follow from a Service:
	// each endpoint of a port for each of its frontends, and each source range for
	// each restricted one. It lets a Service have 10,000 endpoints on its cluster
	// IP, node port and load balancer IP, and one with a cluster IP alone 30,000:
	// Kubernetes is tested with 5,000 nodes, and with Services far smaller.
	MaxEntries = 30_000

	// MaxAPIServers is how many endpoints of default/kubernetes are protected from
	// other Services.
	MaxAPIServers = 1_000

	// maxAPIServerEntries is how many entries of its EndpointSlices, each endpoint with
	// each port, are looked at for them: many may be the same.
	maxAPIServerEntries = 30_000

	// maxSlicePorts is how many ports the EndpointSlices of a Service may list together,
	// those of its routes' backends included. Slices beyond it are ignored.
	maxSlicePorts = 30_000
)

// Entries estimates how many entries of a data plane a Service has with so many endpoints: at most MaxEntries.
func Entries(svc *model.Service, endpoints int) int {
	if svc == nil {
		return 0
	}
	return min(min(frontendsOf(svc), MaxFrontends)*(MaxEntries/MaxFrontends+min(endpoints, MaxEntries)), MaxEntries)
}

// Excess reports which limit a Service exceeds by itself, whatever its endpoints. It
// is rejected as a whole.
func Excess(svc *model.Service) (p model.Problem, over bool) {
	all := len(svc.ClusterIPs) + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs)
	restricted := 0
	if svc.Restricted {
		restricted = len(svc.LoadBalancerIPs) * len(svc.Ports)
	}
	for _, l := range []struct {
		what       string
		found, max int
	}{
		{"addresses", all, MaxAddresses},
		{"ports", len(svc.Ports), MaxPorts},
		{"frontends (ports x addresses)", frontendsOf(svc), MaxFrontends},
		{"source ranges of frontends (ports x load balancer IPs x loadBalancerSourceRanges)", restricted * len(svc.SourceRanges), MaxEntries},
	} {
		if l.found > l.max {
			return model.Problem{
				Object: "Service " + svc.Name.String(), Where: svc.Where, Why: model.WhyTooLarge,
				Detail: fmt.Sprintf("%d %s, limit %d", l.found, l.what, l.max),
			}, true
		}
	}
	return model.Problem{}, false
}

// frontendsOf is how many a Service asks for.
func frontendsOf(svc *model.Service) (n int) {
	for _, family := range model.Families() {
		addresses := addressCount(svc, family)
		for _, port := range svc.Ports {
			n += frontendCount(svc, port, addresses)
		}
	}
	return n
}

// addressCount is how many addresses a Service has in a family, those that are
// rejected and those of two kinds included.
func addressCount(svc *model.Service, family model.Family) (n int) {
	if !serves(svc, family) {
		return 0
	}
	for _, list := range [][]netip.Addr{svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs} {
		for _, ip := range list {
			if model.FamilyOf(ip) == family {
				n++
			}
		}
	}
	return n
}

// frontendCount is how many frontends a port has in a family where the Service has
// that many addresses.
func frontendCount(svc *model.Service, port model.ServicePort, addresses int) int {
	if addresses > 0 && hasNodePort(svc, port) {
		return addresses + 1
	}
	return addresses
}
