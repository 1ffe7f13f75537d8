// SPDX-License-Identifier: Apache-2.0

package question

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// assigner gives Services what they leave to the API server: what the Service of the same name has, as the API server
// does when a manifest is applied, and else placeholders. It takes these from the end of a range: those that the API
// server takes first are in its upper part, too, and those that people choose are at the beginning.
type assigner struct {
	now    map[model.ServiceName]*model.Service // of the API server
	at     time.Time                            // when new Services are created; zero for unknown
	ranges []netip.Prefix                       // of cluster IPs
	ports  config.PortRange                     // node ports

	ips   map[netip.Addr]bool // taken
	nodes map[uint16]bool     // node ports that are taken, of whichever protocol

	nextIP   map[netip.Prefix]netip.Addr // to be tried, by range: all above are taken
	nextPort int                         // same
}

// usualRanges are those of cluster IPs where none is known: for IPv4 kubeadm's.
func usualRanges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/112")}
}

// Assign gives the Services of manifests what they leave to an API server, and returns what was assumed.
func Assign(in *model.Objects, left []model.Unassigned, ports config.PortRange) (assumed []string) {
	a := assigner{ports: ports}
	for _, c := range in.ServiceCIDRs {
		a.ranges = append(a.ranges, c.CIDRs...)
	}
	in.Services, assumed = a.all(in.Services, left)
	return assumed
}

// assign gives the Services of an edit what they leave to the API server, and returns what was assumed.
func (e *Edit) assign(s *engine.Snapshot, at time.Time) (assumed []string) {
	if len(e.Unassigned) == 0 {
		return nil
	}
	a := assigner{ports: e.NodePorts, at: at, ranges: s.Host.ServiceCIDRs, now: map[model.ServiceName]*model.Service{}}
	for _, svc := range s.Services {
		a.now[svc.Object.Name] = svc.Object
	}
	e.Services, assumed = a.all(e.Services, e.Unassigned)
	return assumed
}

// all returns Services with what those that leave something get. The others are the same.
func (a *assigner) all(services []*model.Service, left []model.Unassigned) (all []*model.Service, assumed []string) {
	if len(left) == 0 {
		return services, nil
	}
	if len(a.ranges) == 0 {
		a.ranges = usualRanges()
	}
	if a.ports == (config.PortRange{}) {
		a.ports = config.Default().NodePortRange
	}
	a.ips, a.nodes = map[netip.Addr]bool{}, map[uint16]bool{}
	a.nextIP, a.nextPort = map[netip.Prefix]netip.Addr{}, int(a.ports.Last)
	for _, s := range services {
		a.take(s)
	}
	for _, s := range a.now {
		a.take(s)
	}
	of := make(map[model.ServiceName]model.Unassigned, len(left))
	for _, l := range left {
		of[l.Service] = l
	}
	all = make([]*model.Service, 0, len(services))
	for _, s := range services {
		if l, leaves := of[s.Name]; leaves {
			full := *s
			text := a.complete(&full, l)
			s, assumed = &full, append(assumed, text)
			if len(s.ClusterIPs) == 0 || s.ClusterIPs[0].IsUnspecified() {
				continue // which the text says
			}
		}
		all = append(all, s)
	}
	return all, assumed
}

// take notes what a Service has.
func (a *assigner) take(s *model.Service) {
	for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs} {
		for _, ip := range list {
			a.ips[ip] = true
		}
	}
	for i := range s.Ports {
		a.nodes[s.Ports[i].NodePort] = true
	}
	a.nodes[s.HealthCheckNodePort] = true
}

// complete gives a Service what it leaves, and says what that is.
func (a *assigner) complete(s *model.Service, left model.Unassigned) string {
	was := a.now[s.Name]
	var kept, made []string
	lacks := false // a port
	if left.ClusterIPs {
		if was != nil {
			s.ClusterIPs, kept = was.ClusterIPs, append(kept, "cluster IP "+joined(was.ClusterIPs, " and "))
		} else if s.ClusterIPs = a.clusterIPs(s.ClusterIPs); len(s.ClusterIPs) == 0 {
			return fmt.Sprintf("Service %s is left out: no cluster IP is free in %s", s.Name, joined(a.ranges, ", "))
		} else {
			made = append(made, "cluster IP "+joined(s.ClusterIPs, " and "))
		}
	}
	port := func(what string, now uint16) uint16 {
		if now != 0 {
			kept = append(kept, fmt.Sprintf("%s %d", what, now))
			return now
		}
		free := a.nodePort()
		if lacks = lacks || free == 0; free != 0 {
			made = append(made, fmt.Sprintf("%s %d", what, free))
		}
		return free
	}
	s.Ports = slices.Clone(s.Ports)
	for i := range s.Ports {
		if p := &s.Ports[i]; left.NodePorts && p.NodePort == 0 {
			p.NodePort = port("node port", nodePortOf(was, s, p.Name))
		}
	}
	if s.Type == model.LoadBalancer && s.External == model.Local && s.HealthCheckNodePort == 0 {
		now := uint16(0)
		if was != nil {
			now = was.HealthCheckNodePort
		}
		s.HealthCheckNodePort = port("health check node port", now)
	}
	if s.Created.IsZero() {
		s.Created = a.at
	}
	if was != nil {
		inherit(s, was)
	}
	var said []string
	if len(kept) > 0 {
		said = append(said, strings.Join(kept, ", ")+" as now")
	}
	if len(made) > 0 {
		said = append(said, strings.Join(made, ", ")+" as a placeholder for what the API server will assign")
	}
	if lacks {
		said = append(said, fmt.Sprintf("no node port is free in %s", a.ports))
	}
	return "Service " + s.Name.String() + ": " + strings.Join(said, "; ")
}

// inherit takes over what others write into a Service, and no manifest of people has: when it was created, and addresses
// of its load balancer.
func inherit(s, was *model.Service) {
	s.Created = was.Created
	if s.Type == model.LoadBalancer && was.Type == model.LoadBalancer && len(s.LoadBalancerIPs) == 0 {
		s.LoadBalancerIPs = was.LoadBalancerIPs
	}
}

// nodePortOf is the node port of a port of that name, unless another port of the Service has it by now; 0 for none.
func nodePortOf(was, s *model.Service, name string) uint16 {
	if was == nil {
		return 0
	}
	for i := range was.Ports {
		if p := &was.Ports[i]; p.Name == name && !slices.ContainsFunc(s.Ports, func(q model.ServicePort) bool { return q.NodePort == p.NodePort }) {
			return p.NodePort
		}
	}
	return 0
}

// clusterIPs are free addresses for unspecified ones, each of its family: of the first only where it has no range, as
// of a cluster with one.
func (a *assigner) clusterIPs(unspecified []netip.Addr) (ips []netip.Addr) {
	for _, u := range unspecified {
		if ip := a.clusterIP(u.Is4()); ip.IsValid() {
			ips = append(ips, ip)
		}
	}
	if len(ips) == 0 && len(unspecified) == 1 { // a family that it did not ask for
		if ip := a.clusterIP(!unspecified[0].Is4()); ip.IsValid() {
			ips = append(ips, ip)
		}
	}
	return ips
}

// clusterIP is a free address of a family: the last but one of its ranges or, where that is taken, one before. It is not
// valid where there is none.
func (a *assigner) clusterIP(is4 bool) netip.Addr {
	for _, r := range a.ranges {
		if r.Addr().Is4() != is4 {
			continue
		}
		ip, begun := a.nextIP[r]
		if !begun {
			ip = model.Last(r).Prev()
		}
		for ; r.Contains(ip) && ip != r.Masked().Addr(); ip = ip.Prev() {
			if !a.ips[ip] {
				a.nextIP[r] = ip.Prev()
				return ip
			}
		}
		a.nextIP[r] = r.Masked().Addr()
	}
	return netip.Addr{}
}

// nodePort is a free node port; 0 where there is none.
func (a *assigner) nodePort() uint16 {
	for ; a.nextPort >= int(a.ports.First); a.nextPort-- {
		if port := uint16(a.nextPort); !a.nodes[port] {
			a.nextPort--
			return port
		}
	}
	return 0
}

// joined is the texts of some, with a separator between them.
func joined[T fmt.Stringer](all []T, separator string) string {
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = v.String()
	}
	return strings.Join(texts, separator)
}
