// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// Convert returns what an object of a Kubernetes type means, with its problems: nil for one that means nothing, such as
// a headless Service, or of which nothing can be used.
func Convert(o any) (model.Object, []model.Problem) {
	switch o := o.(type) {
	case *corev1.Service:
		return converted(Service(o))
	case *discoveryv1.EndpointSlice:
		return converted(Slice(o))
	case *corev1.Node:
		return converted(Node(o))
	case *networkingv1.ServiceCIDR:
		return converted(ServiceCIDR(o))
	case *gateway.TCPRoute:
		return converted(route(model.TCP, &o.Route))
	case *gateway.UDPRoute:
		return converted(route(model.UDP, &o.Route))
	case *gateway.ReferenceGrant:
		return converted(ReferenceGrant(o))
	}
	return nil, nil
}

func converted[T any, P interface {
	*T
	model.Object
}](v P, problems []model.Problem,
) (model.Object, []model.Problem) {
	if v == nil {
		return nil, problems
	}
	return v, problems
}

// faults collects the problems of one object.
type faults struct {
	kind  string
	meta  *metav1.ObjectMeta
	of    model.ServiceName // of an EndpointSlice: its Service
	found []model.Problem
	more  int
}

// bad records that the value of a field was rejected; the remark states the reason
// or what is used instead.
func (f *faults) bad(why model.Reason, path, value, remark string) {
	f.add(why, path+": "+shown(value), remark)
}

// add records a problem with a field.
func (f *faults) add(why model.Reason, detail, remark string) {
	if len(f.found) == model.MaxProblems {
		f.more++
		return
	}
	if remark != "" {
		detail += " (" + remark + ")"
	}
	f.found = append(f.found, model.Problem{Object: f.object(), Of: f.of, Why: why, Detail: detail})
}

// problems returns the collected problems.
func (f *faults) problems() []model.Problem { return model.More(f.found, f.more) }

func (f *faults) object() string {
	if f.meta.Namespace == "" {
		return f.kind + " " + shown(f.meta.Name)
	}
	return f.kind + " " + shown(f.meta.Namespace+"/"+f.meta.Name)
}

// FieldPath returns the path of the field that a problem of this package is
// about, such as "spec.ports[1].port".
func FieldPath(p model.Problem) string {
	end := strings.IndexAny(p.Detail, ": (,")
	if end < 0 {
		return p.Detail
	}
	return p.Detail[:end]
}

// at returns the path of an element of a list, with a further field if any.
func at(list string, i int, field string) string {
	s := list + "[" + strconv.Itoa(i) + "]"
	if field != "" {
		s += "." + field
	}
	return s
}

// shown returns s unchanged if it is plain, and quoted otherwise: names and
// addresses may come from untrusted files, and end up in logs and on terminals.
func shown(s string) string {
	const longest = 80
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:/%", r)
	}
	if s == "" || strings.TrimFunc(s, plain) != "" {
		return strconv.Quote(s)
	}
	return s
}

// intern returns s in the copy that all equal strings share. A cluster
// has few nodes and zones but names them in every endpoint.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}

// versionNumber converts a resourceVersion, which is defined as a number by KEP-5504;
// 0 for any other.
func versionNumber(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// port16 converts a port number; ok is false outside 1..65535.
func port16(n int32) (port uint16, ok bool) {
	if n < 1 || n > 65535 {
		return 0, false
	}
	return uint16(n), true
}

// portName reports whether a port name is empty or a DNS label, the only ones
// that Kubernetes admits. Port names end up in the comments and names of
// kernel objects, so nothing else may pass.
func portName(s string) bool {
	if s == "" {
		return true
	}
	if len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// protocol converts a protocol; the empty one means TCP.
func protocol(s string) (p model.Proto, ok bool) {
	switch s {
	case "", "TCP":
		return model.TCP, true
	case "UDP":
		return model.UDP, true
	case "SCTP":
		return model.SCTP, true
	}
	return 0, false
}

// metadataV6 is where a large cloud serves instance credentials over IPv6. Unlike its
// IPv4 counterpart 169.254.169.254 it is not link-local, but it must not be an
// endpoint either.
var metadataV6 = netip.MustParseAddr("fd00:ec2::254")

// parseAddr parses an address; the second result states why it is invalid. IPv4
// octets with leading zeros, which API servers accepted for years, are decimal, as in
// kube-proxy (ParseIPSloppy of k8s.io/utils/net): see decimal. IPv4-mapped addresses
// are rejected because they would name one endpoint twice. IPv6 addresses may be in
// any notation.
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
	if !leadingZero(s) || strings.Contains(s, ":") {
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

// leadingZero reports whether a zero at the beginning of an octet is followed by a digit, which few addresses have.
func leadingZero(s string) bool {
	for i := 1; i < len(s); i++ {
		if s[i-1] == '0' && s[i] >= '0' && s[i] <= '9' && (i == 1 || s[i-2] == '.') {
			return true
		}
	}
	return false
}

// zeros warns of an address or CIDR with leading zeros: other programs read such
// octets as octal (CVE-2021-29923), which is another host.
func (f *faults) zeros(path string, i int, field, s string) {
	if d := decimal(s); d != s {
		f.bad(model.WhyInvalid, at(path, i, field), s, "leading zeros, read as "+d)
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
	addrs.Expect(len(list))
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

// The annotations that state how endpoints are chosen: of Services, but for the
// weights, which are of EndpointSlices and count for all endpoints of theirs.
const (
	AnnotationScheduler = "tandem.dev/load-balancing" // rr, lc, sh, random or maglev
	AnnotationSlowStart = "tandem.dev/slow-start"     // seconds
	AnnotationSpill     = "tandem.dev/zone-spill"     // above=N,floor=N
	AnnotationWeight    = "tandem.dev/weight"         // 0 to 65535
	// AnnotationCiliumWeight means the same; the other one comes first.
	AnnotationCiliumWeight = "service.cilium.io/weight"
)

// annotation returns the value of an annotation.
func (f *faults) annotation(key string) (value string, has bool) {
	value, has = f.meta.Annotations[key]
	return strings.TrimSpace(value), has
}

// badAnnotation reports the value of an annotation as invalid.
func (f *faults) badAnnotation(key, remark string) {
	value, _ := f.annotation(key)
	f.bad(model.WhyInvalid, "metadata.annotations", key+"="+value, remark)
}

// choice converts the annotations of a Service. Invalid ones are left out.
func choice(f *faults) (c model.Choice) {
	if len(f.meta.Annotations) == 0 {
		return c
	}
	if value, has := f.annotation(AnnotationScheduler); has {
		s, ok := model.ParseScheduler(value)
		if !ok || value == "" {
			f.badAnnotation(AnnotationScheduler, "not rr, lc, sh, random or maglev; ignored")
		}
		c.Scheduler = s
	}
	if value, has := f.annotation(AnnotationSlowStart); has {
		seconds, err := strconv.ParseUint(value, 10, 32)
		if err != nil || time.Duration(seconds)*time.Second > model.MaxSlowStart {
			f.badAnnotation(AnnotationSlowStart, "not a number of seconds up to 3600; ignored")
			seconds = 0
		}
		c.SlowStart = time.Duration(seconds) * time.Second
	}
	if value, has := f.annotation(AnnotationSpill); has {
		s, ok := parseSpill(value)
		if !ok {
			f.badAnnotation(AnnotationSpill, "want above=N,floor=N, with N of above at least 1; ignored")
		}
		c.Spill = s
	}
	return c
}

func parseSpill(text string) (s model.Spill, ok bool) {
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch key {
		case "above":
			n, err := strconv.ParseFloat(value, 64)
			if err != nil || !(n >= 1 && n <= math.MaxUint16) {
				return model.Spill{}, false
			}
			s.Above = n
		case "floor":
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				return model.Spill{}, false
			}
			s.Floor = int(n)
		default:
			return model.Spill{}, false
		}
	}
	return s, true
}

// weight converts the weight of a slice's endpoints.
func weight(f *faults) (w uint16, weighted bool) {
	for _, key := range []string{AnnotationWeight, AnnotationCiliumWeight} {
		value, has := f.annotation(key)
		if !has {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 16)
		if err == nil {
			return uint16(n), true
		}
		f.badAnnotation(key, "not within 0..65535, ignored")
	}
	return 0, false
}

// taintLeaving is put on nodes that the cluster autoscaler is about to delete
// (KEP-3458): load balancers must stop using them.
const taintLeaving = "ToBeDeletedByClusterAutoscaler"

// Node converts a Node.
func Node(n *corev1.Node) (*model.Node, []model.Problem) {
	if n == nil {
		return nil, nil
	}
	f := &faults{kind: "Node", meta: &n.ObjectMeta}
	cidrs, path := n.Spec.PodCIDRs, "spec.podCIDRs"
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs, path = []string{n.Spec.PodCIDR}, "spec.podCIDR"
	}
	return &model.Node{
		Name:     intern(n.Name),
		Zone:     intern(n.Labels[corev1.LabelTopologyZone]),
		IPs:      nodeIPs(f, n.Status.Addresses),
		PodCIDRs: prefixes(f, path, cidrs),
		Leaving:  leaving(n),
	}, f.problems()
}

// nodeIPs returns the internal addresses and then the external ones, each once.
// Link-local addresses are fine for a node, unlike for a Service.
func nodeIPs(f *faults, list []corev1.NodeAddress) []netip.Addr {
	var ips model.Unique[netip.Addr]
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, a := range list {
			if a.Type != kind {
				continue
			}
			addr, remark := parseAddr(a.Address)
			if remark == "" && (addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast()) {
				remark = "not a node address"
			}
			if remark != "" {
				f.bad(model.WhyBadAddress, at("status.addresses", i, "address"), a.Address, remark)
				continue
			}
			f.zeros("status.addresses", i, "address", a.Address)
			ips.Add(addr)
		}
	}
	return ips.List()
}

func leaving(n *corev1.Node) bool {
	if n.DeletionTimestamp != nil {
		return true
	}
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Key == taintLeaving {
			return true
		}
	}
	return false
}

// ServiceCIDR converts a ServiceCIDR. One that is being deleted is used until it is
// gone, which takes until no Service has an address of it.
func ServiceCIDR(c *networkingv1.ServiceCIDR) (*model.ServiceCIDR, []model.Problem) {
	if c == nil {
		return nil, nil
	}
	f := &faults{kind: "ServiceCIDR", meta: &c.ObjectMeta}
	return &model.ServiceCIDR{Name: c.Name, CIDRs: prefixes(f, "spec.cidrs", c.Spec.CIDRs)}, f.problems()
}
