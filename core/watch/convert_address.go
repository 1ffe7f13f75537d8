package watch

import (
	"net/netip"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// metadataV6 is where a large cloud serves instance credentials over IPv6. It
// is no link-local address as its IPv4 twin 169.254.169.254, but no more an
// endpoint.
var metadataV6 = netip.MustParseAddr("fd00:ec2::254")

// parseAddr parses an address; the second result says what is wrong with it.
// IPv4 octets with leading zeros, which API servers let in for years, are decimal,
// as they are to kube-proxy (ParseIPSloppy of k8s.io/utils/net): see decimal.
// IPv4-mapped addresses are refused because they would name one endpoint twice. Any
// spelling of an IPv6 address is fine and canonical afterwards.
func parseAddr(s string) (addr netip.Addr, remark string) {
	addr, err := netip.ParseAddr(decimal(s))
	switch {
	case err != nil:
		return addr, "not an IP address"
	case addr.Zone() != "":
		return addr, "has a zone"
	case addr.Is4In6():
		return addr, "IPv4-mapped"
	}
	return addr, ""
}

// decimal returns an IPv4 address or CIDR without the leading zeros of its octets,
// and anything else as it is.
func decimal(s string) string {
	if !strings.Contains("."+s, ".0") || strings.Contains(s, ":") {
		return s
	}
	ip, bits, cidr := strings.Cut(s, "/")
	octets := strings.Split(ip, ".")
	if len(octets) != 4 {
		return s
	}
	for i, o := range octets {
		if len(o) > 3 || strings.Trim(o, "0123456789") != "" {
			return s
		}
		if o = strings.TrimLeft(o, "0"); o == "" && octets[i] != "" {
			o = "0"
		}
		octets[i] = o
	}
	if ip = strings.Join(octets, "."); cidr {
		ip += "/" + bits
	}
	return ip
}

// zeros warns of an address or CIDR that is read without its leading zeros: half of
// the world reads those octets as octal (CVE-2021-29923), and means another host.
func (f *faults) zeros(path string, i int, field, s string) {
	if d := decimal(s); d != s {
		f.bad(model.WhyInvalid, at(path, i, field), s, "leading zeros, taken as "+d)
	}
}

// serviceAddr parses an address that is to be an endpoint or a virtual IP.
// Kubernetes refuses special addresses there since CVE-2021-25737, but global
// multicast still passes its validation, and files see no validation at all.
func serviceAddr(s string) (addr netip.Addr, remark string) {
	addr, remark = parseAddr(s)
	if remark != "" {
		return addr, remark
	}
	switch {
	case addr.IsUnspecified():
		return addr, "unspecified"
	case addr.Is4() && addr.As4()[0] == 0: // RFC 1122, section 3.2.1.3
		return addr, "in 0.0.0.0/8, never a destination"
	case addr.IsLoopback():
		return addr, "loopback"
	case addr.IsMulticast():
		return addr, "multicast"
	case addr.IsLinkLocalUnicast():
		return addr, "link-local"
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return addr, "broadcast"
	case addr == metadataV6:
		return addr, "cloud metadata"
	}
	return addr, ""
}

// vips parses the addresses of a Service, each once, in their order.
func vips(f *faults, path string, list []string) []netip.Addr {
	var addrs model.Unique[netip.Addr]
	for i, s := range list {
		addr, remark := serviceAddr(s)
		if remark != "" {
			f.bad(model.WhyBadAddress, at(path, i, ""), s, remark)
			continue
		}
		f.zeros(path, i, "", s)
		addrs.Add(addr)
	}
	return addrs.List()
}

// prefixes parses CIDRs, each once, with host bits cleared. Blanks around them
// are allowed, as kube-proxy allows them.
func prefixes(f *faults, path string, list []string) []netip.Prefix {
	var ps model.Unique[netip.Prefix]
	for i, s := range list {
		s = strings.TrimSpace(s)
		p, err := netip.ParsePrefix(decimal(s))
		if err != nil || p.Addr().Is4In6() {
			f.bad(model.WhyBadRange, at(path, i, ""), s, "")
			continue
		}
		f.zeros(path, i, "", s)
		ps.Add(p.Masked())
	}
	return ps.List()
}
