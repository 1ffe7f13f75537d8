// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"

	"github.com/tandem-proxy/tandem/core/model"
)

// network describes the network of the pods. It is immutable.
type network struct {
	id, name string
	overlay  bool
	remote   []remoteSubnet  // of an overlay
	subnets  [2]netip.Prefix // the first range of its own addresses, by family
}

// remoteSubnet is a range of pod addresses behind another node.
type remoteSubnet struct {
	pods netip.Prefix
	node netip.Addr
}

// forSwitch are networks without pods that set-up scripts create so that the node has its virtual switch
// before the network of the pods: of Microsoft, flannel and Calico; of AKS; of OVN-Kubernetes.
var forSwitch = [...]string{"External", "ext", "BaseOVNKubernetesHybridOverlayNetwork"}

// FindNetwork returns the network of the pods: the one of that name or, with an empty
// name, the only one that can have load balancers, except forSwitch. Its errors list
// the networks that HNS has.
func FindNetwork(all []Network, name string) (Network, error) {
	var fit []Network
	var seen []string
	for _, n := range all {
		seen = append(seen, fmt.Sprintf("%s (%s)", n.Name, n.Type))
		switch {
		case name != "" && n.Name == name:
			return n, balances(n)
		case name == "" && !slices.Contains(forSwitch[:], n.Name) && balances(n) == nil:
			fit = append(fit, n)
		}
	}
	there := "there are none"
	if len(seen) > 0 {
		there = "there are " + strings.Join(seen, ", ")
	}
	switch {
	case name != "":
		return Network{}, fmt.Errorf("HNS has no network %q yet: %s", name, there)
	case len(fit) == 0:
		return Network{}, fmt.Errorf("HNS has no l2bridge or overlay network yet; a CNI plug-in creates it: %s", there)
	case len(fit) > 1:
		return Network{}, fmt.Errorf("HNS has several networks: name one with --network-name: %s", there)
	}
	return fit[0], nil
}

// balances reports why a network cannot have load balancers. On Transparent networks
// Open vSwitch serves Services (Antrea).
func balances(n Network) error {
	for _, t := range []string{TypeOverlay, TypeL2Bridge, TypeL2Tunnel} {
		if strings.EqualFold(n.Type, t) {
			return nil
		}
	}
	return fmt.Errorf("network %q is of type %s: load balancers of HNS need l2bridge or overlay", n.Name, n.Type)
}

// describe extracts what the driver needs of a network. Policies of other types, and
// those that cannot be read, are ignored.
func describe(n Network) network {
	d := network{id: n.ID, name: n.Name, overlay: strings.EqualFold(n.Type, TypeOverlay)}
	for _, p := range n.Policies {
		var s RemoteSubnet
		if p.Type != PolicyRemoteSubnet || json.Unmarshal(p.Settings, &s) != nil {
			continue
		}
		pods, err := netip.ParsePrefix(s.DestinationPrefix)
		node, err2 := netip.ParseAddr(s.ProviderAddress)
		if err == nil && err2 == nil {
			d.remote = append(d.remote, remoteSubnet{pods, node})
		}
	}
	for _, i := range n.Ipams {
		for _, s := range i.Subnets {
			r, err := netip.ParsePrefix(s.IpAddressPrefix)
			if err == nil && !d.subnets[model.FamilyOf(r.Addr())].IsValid() {
				d.subnets[model.FamilyOf(r.Addr())] = r.Masked()
			}
		}
	}
	return d
}

// provider returns the node that an address is behind, or the address itself if it is
// another node's. Of overlapping ranges the last one counts, as for kube-proxy.
func (n network) provider(a netip.Addr) (node netip.Addr, ok bool) {
	for _, r := range slices.Backward(n.remote) {
		if r.pods.Contains(a) || r.node == a {
			return r.node, true
		}
	}
	return netip.Addr{}, false
}

// node reports whether an address is that of another node.
func (n network) node(a netip.Addr) bool {
	for _, r := range n.remote {
		if r.node == a {
			return true
		}
	}
	return false
}

// inside reports whether an address is a pod's on another node.
func (n network) inside(a netip.Addr) bool {
	_, ok := n.provider(a)
	return ok && !n.node(a)
}

// sourceNames are the names of endpoints whose address is used as the source VIP: as proposed in
// kubernetes#123014, OpenShift's, Calico's (remote on overlays) and Tandem's.
var sourceNames = [...]string{"sourcevip", "VIPEndpoint", "Calico_ep", sourceName}

// sourceVIP returns the address that an overlay's load balancers send from: the configured
// one, that of an endpoint with a known name, or the one that flannel's start scripts have
// reserved. It is not valid if there is none; then HNS chooses one. Chosen reports that
// HNS chose it, so that no IPAM has reserved it.
func (s Settings) sourceVIP(all []Endpoint) (a netip.Addr, chosen bool) {
	if s.SourceVIP.IsValid() {
		return s.SourceVIP, false
	}
	for _, name := range sourceNames {
		for _, e := range all {
			if as := addresses(e); e.Name == name && len(as) > 0 {
				return as[0], isSource(e) && as[0] != s.reserved()
			}
		}
	}
	return s.reserved(), false
}

// reserved returns the address that flannel's start scripts have reserved; not valid where they did not run.
func (s Settings) reserved() netip.Addr {
	a, err := readSourceVIP(s.SourceVIPFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("reading the source VIP failed", "file", s.SourceVIPFile, "err", err)
	}
	return a
}

func isSource(e Endpoint) bool { return e.Name == sourceName && !e.remote() }

// maxSourceVIP bounds the bytes of SourceVIPFile that are read: any user can create folders in C:\.
const maxSourceVIP = 64 << 10

// readSourceVIP reads the CNI result of host-local IPAM, in which it reserved the address.
// PowerShell writes UTF-16 or UTF-8, with a byte order mark.
func readSourceVIP(file string) (netip.Addr, error) {
	f, err := os.Open(file)
	if err != nil {
		return netip.Addr{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSourceVIP))
	if err != nil {
		return netip.Addr{}, err
	}
	if text, err = (&encoding.Decoder{Transformer: unicode.BOMOverride(encoding.Nop.NewDecoder())}).Bytes(text); err != nil {
		return netip.Addr{}, err
	}
	return parseSourceVIP(text)
}

func parseSourceVIP(text []byte) (netip.Addr, error) {
	var answer struct {
		IP4 struct {
			IP string `json:"ip"`
		} `json:"ip4"`
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return netip.Addr{}, err
	}
	found := []string{answer.IP4.IP}
	for _, ip := range answer.IPs {
		found = append(found, ip.Address)
	}
	for _, s := range found {
		if p, err := netip.ParsePrefix(s); err == nil && p.Addr().Is4() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("none of %d entries is an IPv4 address with its prefix length", len(found))
}
