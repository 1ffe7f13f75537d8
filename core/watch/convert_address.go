package watch

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// metadataV6 is where a large cloud serves instance credentials over IPv6. It
// is no link-local address as its IPv4 twin 169.254.169.254, but no more an
// endpoint.
var metadataV6 = netip.MustParseAddr("fd00:ec2::254")

// parseAddr parses an address; the second result says what is wrong with it.
// IPv4 octets with leading zeros are refused because half of the world reads
// them as octal (CVE-2021-29923), IPv4-mapped addresses because they would name
// one endpoint twice. Any spelling of an IPv6 address is fine and canonical
// afterwards.
func parseAddr(s string) (addr netip.Addr, remark string) {
	addr, err := netip.ParseAddr(s)
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
	var addrs []netip.Addr
	for i, s := range list {
		addr, remark := serviceAddr(s)
		if remark != "" {
			f.bad(model.WhyBadAddress, at(path, i, ""), s, remark)
			continue
		}
		addrs = appendNew(addrs, addr)
	}
	return addrs
}

// prefixes parses CIDRs, each once, with host bits cleared. Blanks around them
// are allowed, as kube-proxy allows them.
func prefixes(f *faults, path string, list []string) []netip.Prefix {
	var ps []netip.Prefix
	for i, s := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil || p.Addr().Is4In6() {
			f.bad(model.WhyBadRange, at(path, i, ""), s, "")
			continue
		}
		ps = appendNew(ps, p.Masked())
	}
	return ps
}

func appendNew[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}
