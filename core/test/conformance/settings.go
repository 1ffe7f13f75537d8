// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// host reads the settings of the node: its configuration, and facts of the machine.
func (p *parser) host(into *Scenario, all []section) {
	into.Host = config.Default()
	into.Host.NodeName = NodeName
	into.Machine.Listeners = &model.Listeners{}
	into.Host.ClusterCIDRs = prefixes("10.244.0.0/16 fd00:10:244::/56")
	for _, s := range all {
		if s.step == 0 && s.name == "host" {
			p.settings(into, s)
		}
	}
}

func (p *parser) settings(into *Scenario, s section) {
	i := 0
	for text := range strings.Lines(string(s.data)) {
		i++
		text, _, _ = strings.Cut(text, "#")
		if strings.TrimSpace(text) == "" {
			continue
		}
		key, value, ok := strings.Cut(text, ":")
		if !ok {
			p.fail(s.line+i, "host: want \"key: value\"")
			continue
		}
		if err := set(into, strings.TrimSpace(key), strings.Fields(value)); err != nil {
			p.fail(s.line+i, "host: %v", err)
		}
	}
}

func set(s *Scenario, key string, values []string) error {
	c, m := &s.Host, &s.Machine
	if len(values) == 0 {
		return fmt.Errorf("%s has no value", key)
	}
	switch key {
	case "pods":
		return setPods(c, values[0], values[1:])
	case "nodeports":
		return setNodePorts(c, values)
	case "masquerade-all":
		if values[0] != "true" && values[0] != "false" {
			return fmt.Errorf("masquerade-all is true or false, not %q", values[0])
		}
		c.MasqueradeAll = values[0] == "true"
		return nil
	case "allowed-external-ips":
		return setExternalIPs(c, values)
	case "addresses":
		ps, err := parsePrefixes(values)
		for _, prefix := range ps {
			m.Addresses = append(m.Addresses, model.LocalAddress{Prefix: prefix})
		}
		return err
	case "shared-addresses":
		ps, err := parsePrefixes(values)
		s.Shared = append(s.Shared, ps...)
		return err
	case "listeners":
		return setListeners(m.Listeners, values)
	case "api-server":
		at, err := netip.ParseAddrPort(values[0])
		m.APIServers = append(m.APIServers, at)
		return err
	}
	return fmt.Errorf("unknown key %q", key)
}

// setListeners adds sockets of this node: a protocol, then addresses and ports.
func setListeners(all *model.Listeners, values []string) error {
	proto, err := parseProto(values[0])
	if err != nil {
		return err
	}
	for _, v := range values[1:] {
		at, err := netip.ParseAddrPort(v)
		if err != nil {
			return err
		}
		all.All = append(all.All, model.Listener{Proto: proto, At: at, Name: "agent"})
	}
	slices.SortFunc(all.All, model.Listener.Compare)
	return nil
}

func setPods(c *config.Config, how string, rest []string) (err error) {
	c.ClusterCIDRs = nil
	want := map[string]int{"node-cidr": 0, "none": 0, "interface": 1, "prefix": 1, "cidr": max(1, len(rest))}
	n, known := want[how]
	if !known {
		return fmt.Errorf("pods: unknown %q", how)
	}
	if len(rest) != n {
		return fmt.Errorf("pods: %q with %d values", how, len(rest))
	}
	switch how {
	case "cidr":
		c.DetectLocal = config.DetectClusterCIDR
		c.ClusterCIDRs, err = parsePrefixes(rest)
	case "node-cidr":
		c.DetectLocal = config.DetectNodeCIDR
	case "interface":
		c.DetectLocal, c.PodBridge = config.DetectBridgeInterface, rest[0]
	case "prefix":
		c.DetectLocal, c.PodInterfacePrefix = config.DetectInterfacePrefix, rest[0]
	}
	return err
}

func setNodePorts(c *config.Config, values []string) (err error) {
	c.NodePorts = config.NodePorts{}
	var ranges []string
	for _, word := range values {
		switch word {
		case "all":
			c.NodePorts.All = true
		case "primary":
			c.NodePorts.Primary = true
		case "localhost":
			c.NodePorts.Localhost = true
		default:
			ranges = append(ranges, word)
		}
	}
	c.NodePorts.Prefixes, err = parsePrefixes(ranges)
	return err
}

func setExternalIPs(c *config.Config, values []string) (err error) {
	if c.ExternalIPs.Only = values[0] == "only"; c.ExternalIPs.Only {
		values = values[1:]
	}
	c.ExternalIPs.Allowed, err = parsePrefixes(values)
	return err
}

func parsePrefixes(words []string) ([]netip.Prefix, error) {
	var ps []netip.Prefix
	for _, w := range words {
		p, err := netip.ParsePrefix(w)
		if err != nil {
			return nil, fmt.Errorf("%q is not a prefix", w)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// prefixes parses constants of this package.
func prefixes(s string) (ps []netip.Prefix) {
	for _, w := range strings.Fields(s) {
		ps = append(ps, netip.MustParsePrefix(w))
	}
	return ps
}

func within(s string, a netip.Addr) bool {
	for _, p := range prefixes(s) {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// NodeName is the node under test.
const NodeName = "node-1"

// DefaultNodeFile is the name of DefaultNode in the folder.
const DefaultNodeFile = "node-1.yaml"

// DefaultNode is the Node of every scenario that does not bring its own.
const DefaultNode = `apiVersion: v1
kind: Node
metadata:
  name: node-1
  labels:
    kubernetes.io/hostname: node-1
    topology.kubernetes.io/zone: zone-a
spec:
  podCIDR: 10.244.1.0/24
  podCIDRs:
  - 10.244.1.0/24
  - fd00:10:244:1::/64
status:
  addresses:
  - type: InternalIP
    address: 192.0.2.1
  - type: InternalIP
    address: 2001:db8::1
  - type: Hostname
    address: node-1
`
