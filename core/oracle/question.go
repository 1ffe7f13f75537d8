// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// Question is a packet as people name it.
//
// From is "host", "pod" (any of this node), "outside" or an address, with
// "%INTERFACE" behind it where pods are recognised by that. To is
// "ADDRESS:PORT", "NAMESPACE/SERVICE" or "NAMESPACE/SERVICE:PORT", with the port's
// name or number; "/udp" or "/sctp" may follow.
type Question struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Packet returns the packet that the question is about. The error is for the user.
func (q Question) Packet(host *model.Host, ports []*model.Port) (p Packet, err error) {
	f, known := q.family()
	if p.Dst, p.Proto, err = q.destination(ports, f, known); err != nil {
		return p, fmt.Errorf("to %q: %w", q.To, err)
	}
	if p.Dst.Addr().IsUnspecified() { // a node port
		own, _ := host.Primary(model.FamilyOf(p.Dst.Addr()))
		p.Dst = netip.AddrPortFrom(own, p.Dst.Port())
	}
	if p.Src, p.Iface, err = q.sender(host, ports, p.Dst.Addr()); err != nil {
		return p, fmt.Errorf("from %q: %w", q.From, err)
	}
	if p.Src.Is4() != p.Dst.Addr().Is4() {
		return p, fmt.Errorf("from %s to %s: two IP families", p.Src, p.Dst.Addr())
	}
	return p, nil
}

// Service returns the Service that a question names, if it does.
func (q Question) Service() (n model.ServiceName, ok bool) {
	text, _, _ := q.protocol()
	if _, err := netip.ParseAddrPort(text); err == nil {
		return n, false
	}
	name, _, _ := strings.Cut(text, ":")
	n, err := model.ParseServiceName(name)
	return n, err == nil
}

// NeedsEndpoints reports whether the endpoints of all Services are needed to determine where the
// sender is.
func (q Question) NeedsEndpoints(host *model.Host) bool {
	a, err := netip.ParseAddr(q.From) // without an interface
	return err == nil && a.Zone() == "" && !slices.Contains(host.IPs, a) && !a.IsLoopback() && !host.Pods.Match(a, "")
}

// protocol cuts the protocol off the destination; given states that there is one.
func (q Question) protocol() (text string, proto model.Proto, given bool) {
	if i := strings.LastIndexByte(q.To, '/'); i >= 0 {
		for _, x := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
			if strings.EqualFold(q.To[i+1:], x.String()) {
				return q.To[:i], x, true
			}
		}
	}
	return q.To, model.TCP, false
}

// family is that of the sender, if it is an address.
func (q Question) family() (f model.Family, known bool) {
	text, _, _ := strings.Cut(q.From, "%")
	a, err := netip.ParseAddr(text)
	return model.FamilyOf(a), err == nil
}

func (q Question) destination(ports []*model.Port, f model.Family, known bool) (netip.AddrPort, model.Proto, error) {
	text, proto, given := q.protocol()
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at, proto, nil
	}
	name, port, _ := strings.Cut(text, ":")
	service, err := model.ParseServiceName(name)
	if err != nil {
		return netip.AddrPort{}, 0, errors.New("want ADDRESS:PORT or NAMESPACE/SERVICE:PORT, with the suffix /udp or /sctp if not TCP")
	}
	return frontendOf(ports, service, port, func(p *model.Port) bool {
		return (!given || p.ID.Proto == proto) && (!known || p.ID.Family == f)
	})
}

// frontendOf finds the first address of a Service's port.
func frontendOf(ports []*model.Port, name model.ServiceName, port string, fits func(*model.Port) bool) (netip.AddrPort, model.Proto, error) {
	var found []*model.Port
	var names []string
	for _, p := range ports {
		if p.ID.Service != name || !fits(p) || len(p.Frontends) == 0 {
			continue
		}
		number := strconv.Itoa(int(p.Frontends[0].At.Port()))
		names = append(names, strings.TrimSuffix(p.ID.Name+" "+number+"/"+p.ID.Proto.String(), " "))
		if port == "" || port == p.ID.Name || port == number {
			found = append(found, p)
		}
	}
	switch {
	case len(names) == 0:
		return netip.AddrPort{}, 0, fmt.Errorf("no Service %s has an address here", name)
	case len(found) == 0:
		return netip.AddrPort{}, 0, fmt.Errorf("no port %q in Service %s: choose %s", port, name, strings.Join(names, ", "))
	}
	first := found[0]
	for _, p := range found {
		if p.ID.Name != first.ID.Name || p.ID.Proto != first.ID.Proto {
			return netip.AddrPort{}, 0, fmt.Errorf("several ports in Service %s: choose %s", name, strings.Join(names, ", "))
		}
	}
	return first.Frontends[0].At, first.ID.Proto, nil
}

// The example senders: documentation addresses (RFC 5737, RFC 3849).
var (
	outside4 = netip.AddrFrom4([4]byte{203, 0, 113, 254})
	outside6 = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0xff, 0xff, 15: 0xfe})
)

func (q Question) sender(host *model.Host, ports []*model.Port, to netip.Addr) (netip.Addr, string, error) {
	f := model.FamilyOf(to)
	switch q.From {
	case "host":
		if to.IsLoopback() {
			return to, "", nil // the kernel takes the address itself as the source
		}
		if a, ok := host.Primary(f); ok {
			return a, "", nil
		}
		return netip.Addr{}, "", fmt.Errorf("this node has no %s address", f)
	case "pod":
		return anyPod(host, f)
	case "outside":
		return map[model.Family]netip.Addr{model.IPv4: outside4, model.IPv6: outside6}[f], Uplink, nil
	}
	text, iface, named := strings.Cut(q.From, "%")
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, "", errors.New("want host, pod, outside or an address (of a pod: kubectl get pod -o wide)")
	case named:
		return a, iface, nil
	case slices.Contains(host.IPs, a) || a.IsLoopback():
		return a, "", nil
	case host.Pods.Match(a, "") || isLocalEndpoint(ports, a):
		return a, podIface(host.Pods), nil
	}
	return a, Uplink, nil
}

// isLocalEndpoint reports whether an address is an endpoint of some Service on this
// node, which is in no host's network of its own: a pod.
func isLocalEndpoint(ports []*model.Port, a netip.Addr) bool {
	for _, p := range ports {
		for _, pool := range p.Pools() {
			for _, e := range pool.Endpoints {
				if e.Local && e.Addr.Addr() == a {
					return true
				}
			}
		}
	}
	return false
}

// anyPod is the address of a pod of this node, though it may have none just now.
func anyPod(host *model.Host, f model.Family) (netip.Addr, string, error) {
	for _, p := range host.Pods.CIDRs {
		a := p.Masked().Addr().Next().Next()
		for slices.Contains(host.IPs, a) {
			a = a.Next()
		}
		if model.FamilyOf(a) == f {
			return a, podIface(host.Pods), nil
		}
	}
	return netip.Addr{}, "", fmt.Errorf("no pod range of family %s is known: give an address, with %%INTERFACE if pods are detected by interface", f)
}

// podIface is a name by which pods are recognised; any where that plays no part.
func podIface(m model.PodMatch) string {
	switch {
	case m.Interface != "":
		return m.Interface
	case m.Prefix != "":
		return m.Prefix + "0"
	}
	return "pod0"
}
