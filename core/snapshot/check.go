// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// check rejects what no source delivers, so that what works with inputs may rely on
// the same as in a running proxy.
func (f *File) check() error {
	if f.Node != nil {
		if err := addresses("node "+f.Node.Name, f.Node.IPs, nil, f.Node.PodCIDRs); err != nil {
			return err
		}
	}
	for _, s := range f.Services {
		if err := checkService(s); err != nil {
			return fmt.Errorf("service %s: %w", s.Name, err)
		}
	}
	for _, n := range f.Others {
		if n == nil {
			return errors.New("otherNodes: null")
		}
		if err := addresses("node "+n.Name, n.IPs, nil, n.PodCIDRs); err != nil {
			return err
		}
	}
	for _, s := range f.Slices {
		if err := checkSlice(s); err != nil {
			return fmt.Errorf("slice %s: %w", s.Name, err)
		}
	}
	for _, c := range f.CIDRs {
		if err := addresses("ServiceCIDR "+c.Name, nil, nil, c.CIDRs); err != nil {
			return err
		}
	}
	for _, r := range f.Routes {
		if r.Name.Proto != model.TCP && r.Name.Proto != model.UDP {
			return fmt.Errorf("route %s/%s: protocol %d", r.Name.Namespace, r.Name.Name, r.Name.Proto)
		}
	}
	for _, s := range f.Slots {
		if err := addresses("slot", nil, append([]netip.AddrPort{s.At}, s.Endpoints...), nil); err != nil || s.From >= model.Origins {
			return fmt.Errorf("slot of %s: not valid", s.At)
		}
	}
	for _, r := range f.Ready {
		if err := addresses("ready of "+r.Service.String(), slices.Collect(maps.Keys(r.Endpoints)), nil, nil); err != nil {
			return err
		}
	}
	var local []netip.Prefix
	for _, a := range f.Machine.Addresses {
		local = append(local, a.Prefix)
	}
	if err := addresses("machine", slices.Collect(maps.Keys(f.Suspects)), f.Machine.APIServers, local); err != nil {
		return err
	}
	return addresses("configuration", nil, nil, append(append(append([]netip.Prefix{}, f.Config.ClusterCIDRs...), f.Config.NodePorts.Prefixes...), f.Config.ExternalIPs.Allowed...))
}

// addresses rejects those that are not valid, or in a form that has another.
func addresses(whose string, ips []netip.Addr, ports []netip.AddrPort, prefixes []netip.Prefix) error {
	for _, p := range ports {
		ips = append(ips[:len(ips):len(ips)], p.Addr())
	}
	for _, p := range prefixes {
		if !p.IsValid() {
			return fmt.Errorf("%s: %s is not a prefix", whose, p)
		}
		ips = append(ips[:len(ips):len(ips)], p.Addr())
	}
	for _, a := range ips {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			return fmt.Errorf("%s: address %s is not valid", whose, a)
		}
	}
	return nil
}

func proto(p model.Proto) bool { return p == model.TCP || p == model.UDP || p == model.SCTP }

func checkService(s *model.Service) error {
	if s.Type > model.LoadBalancer || s.External > model.Local || s.Internal > model.Local || s.SessionAffinity < 0 {
		return fmt.Errorf("type %d, policies %d and %d, affinity %s: not valid", s.Type, s.External, s.Internal, s.SessionAffinity)
	}
	if s.Choice.Scheduler > model.Maglev {
		return fmt.Errorf("scheduler %d: not valid", uint8(s.Choice.Scheduler))
	}
	for _, p := range s.Ports {
		if !proto(p.Proto) || p.Port == 0 {
			return fmt.Errorf("port %q: not valid", p.Name)
		}
	}
	for _, ips := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs} {
		if err := addresses("addresses", ips, nil, nil); err != nil {
			return err
		}
	}
	return addresses("source ranges", nil, nil, s.SourceRanges)
}

func checkSlice(s *model.Slice) error {
	if s.Family > model.IPv6 {
		return fmt.Errorf("family %d", s.Family)
	}
	for _, p := range s.Ports {
		if !proto(p.Proto) || p.Port == 0 {
			return fmt.Errorf("port %q: not valid", p.Name)
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if err := addresses("endpoint", []netip.Addr{e.Addr}, nil, nil); err != nil {
			return err
		}
		if model.FamilyOf(e.Addr) != s.Family || e.State > model.Ready|model.Serving|model.Terminating|model.Unanswered {
			return fmt.Errorf("endpoint %s: not of the slice's family, or in an unknown state", e.Addr)
		}
	}
	return nil
}
