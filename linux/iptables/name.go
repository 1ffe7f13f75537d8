package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// The chains that are always there. The names are kube-proxy's, and people and
// tools know them; those with "of ours" in the comment are not.
const (
	chainServices    = "KUBE-SERVICES"           // nat: dispatch by address; filter: cluster IPs that nobody serves
	chainExternal    = "KUBE-EXTERNAL-SERVICES"  // filter: other addresses that nobody serves
	chainNodePorts   = "KUBE-NODEPORTS"          // nat: dispatch by port; filter: health check ports
	chainClosed      = "KUBE-NODEPORTS-UNSERVED" // filter: node ports that nobody serves; of ours
	chainFirewall    = "KUBE-PROXY-FIREWALL"     // filter: clients outside of source ranges
	chainForward     = "KUBE-FORWARD"            // filter
	chainMark        = "KUBE-MARK-MASQ"          // nat
	chainPostrouting = "KUBE-POSTROUTING"        // nat
)

// The beginnings of names of the chains that a port has for itself.
const (
	prefixCluster  = "KUBE-SVC-" // an endpoint of the cluster
	prefixLocal    = "KUBE-SVL-" // an endpoint on this node
	prefixExternal = "KUBE-EXT-" // by origin, to one of the two above
	prefixFirewall = "KUBE-FW-"  // by source range, to KUBE-EXT-
	prefixEndpoint = "KUBE-SEP-" // one endpoint
)

// class says whose a chain is and how its rules come about.
type class uint8

const (
	foreign class = iota // not ours; in those of the kernel we have single rules
	shared               // many ports contribute rules
	whole                // all rules are one object
)

// classOf tells chains by their names.
func classOf(chain string) class {
	switch chain {
	case chainServices, chainExternal, chainNodePorts, chainClosed, chainFirewall:
		return shared
	case chainForward, chainMark, chainPostrouting:
		return whole
	}
	for _, t := range trees {
		if strings.HasPrefix(chain, t.beginning) {
			return shared
		}
	}
	for _, prefix := range []string{prefixCluster, prefixLocal, prefixExternal, prefixFirewall, prefixEndpoint} {
		if rest, ok := strings.CutPrefix(chain, prefix); ok && isHash(rest) {
			return whole
		}
	}
	return foreign
}

// hashLength is how much of a hash is in names: 80 bits.
const hashLength = 16

// hash is what tells names apart, as kube-proxy makes it.
func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return base32.StdEncoding.EncodeToString(sum[:])[:hashLength]
}

func isHash(s string) bool {
	return len(s) == hashLength && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// portHash identifies a port in names: kube-proxy's own formula.
func portHash(id model.PortID) string { return hash(id.String(), id.Proto.String()) }

// endpointChain names the chain of one endpoint, by kube-proxy's formula.
func endpointChain(id model.PortID, endpoint netip.AddrPort) string {
	return prefixEndpoint + hash(id.String(), id.Proto.String(), endpoint.String())
}

// addressChain names a part of a tree by its prefix. IPv6 prefixes are too long
// for a name (28 bytes); the rule that leads there shows them.
func addressChain(beginning string, p netip.Prefix) string {
	if p.Addr().Is4() {
		return beginning + p.String()
	}
	return beginning + hash(p.String())
}

// portChain names a part of a tree by its ports.
func portChain(beginning string, proto model.Proto, r xtables.Ports) string {
	return beginning + proto.String() + "-" + strconv.Itoa(int(r.First)) + "-" + strconv.Itoa(int(r.Last))
}
