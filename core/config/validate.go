package config

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Validate returns every mistake in a configuration, joined, each with the name
// of the flag it is about. Which modes there are is not known here: see
// platform.Find.
func (c *Config) Validate() error {
	var errs []error
	wrong := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}
	switch c.DetectLocal {
	case DetectClusterCIDR, DetectNodeCIDR:
	case DetectBridgeInterface:
		if c.PodBridge == "" {
			wrong("pod-bridge-interface", "must name the bridge when --detect-local-mode=%s", c.DetectLocal)
		}
	case DetectInterfacePrefix:
		if c.PodInterfacePrefix == "" {
			wrong("pod-interface-name-prefix", "must be set when --detect-local-mode=%s", c.DetectLocal)
		}
	default:
		wrong("detect-local-mode", "%q is none of %s, %s, %s, %s", c.DetectLocal,
			DetectClusterCIDR, DetectNodeCIDR, DetectBridgeInterface, DetectInterfacePrefix)
	}
	if len(c.PodBridge) > 15 {
		wrong("pod-bridge-interface", "%q is longer than an interface name can be (15)", c.PodBridge)
	}
	if len(c.PodInterfacePrefix) > 15 {
		wrong("pod-interface-name-prefix", "%q is longer than an interface name can be (15)", c.PodInterfacePrefix)
	}
	if c.NodePorts.Primary && len(c.NodePorts.Prefixes) > 0 {
		wrong("nodeport-addresses", "primary cannot be combined with prefixes")
	}
	if c.MasqueradeBit < 0 || c.MasqueradeBit > 31 {
		wrong("iptables-masquerade-bit", "%d is outside 0 to 31", c.MasqueradeBit)
	}
	if c.AuditPeriod <= 0 {
		wrong("audit-period", "must be greater than 0")
	}
	if c.MinSyncPeriod < 0 {
		wrong("min-sync-period", "must not be negative")
	}
	if err := listenAddress(c.HTTPAddress); err != nil {
		wrong("metrics-bind-address", "%v", err)
	}
	return errors.Join(errs...)
}

func listenAddress(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is not IP:PORT", s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q has no valid port", s)
	}
	if net.ParseIP(host) == nil {
		return fmt.Errorf("%q has no valid IP address", s)
	}
	return nil
}
