// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/netip"
)

// Validate returns every mistake in a configuration, joined, each with the name
// of the flag it is about, or of the field that has none. Which modes there are
// is not known here: see platform.Find.
func (c *Config) Validate() error {
	var errs []error
	for _, m := range c.mistakes() {
		if found := Find(m.Name); len(found) > 0 && found[0].Flag != "" {
			m.Name = "--" + found[0].Flag
		}
		errs = append(errs, errors.New(m.String()))
	}
	return errors.Join(errs...)
}

// mistakes validates a configuration and returns the findings by setting:
// each value by itself, and combinations of values.
func (c *Config) mistakes() (found []Finding) {
	for _, s := range Settings() {
		if s.Counts != nil && !s.Counts(c.Mode) || s.Deprecated != "" {
			continue
		}
		if v := s.Value(c); v.Check != nil {
			if err := v.Check(); err != nil {
				found = append(found, Finding{Name: s.Name(), Text: err.Error()})
			}
		}
	}
	wrong := func(name, format string, args ...any) {
		found = append(found, Finding{Name: name, Text: fmt.Sprintf(format, args...)})
	}
	switch {
	case c.DetectLocal == DetectBridgeInterface && c.PodBridge == "":
		wrong("detectLocal.bridgeInterface", "must name the bridge when pods are detected by %s", c.DetectLocal)
	case c.DetectLocal == DetectInterfacePrefix && c.PodInterfacePrefix == "":
		wrong("detectLocal.interfaceNamePrefix", "must be set when pods are detected by %s", c.DetectLocal)
	case c.DetectLocal == DetectClusterCIDR && !onePerFamily(c.ClusterCIDRs):
		wrong("clusterCIDR", "can be one range, or one of IPv4 and one of IPv6")
	}
	if inIPVS(c.Mode) && c.Gates.Off(GateIPVS) {
		wrong("mode", "%s is disabled by the feature gate %s=false", c.Mode, GateIPVS)
	}
	if c.MinSyncPeriod > c.SyncPeriod && c.SyncPeriod > 0 {
		wrong(c.section()+".minSyncPeriod", "%s is longer than the sync period, %s", c.MinSyncPeriod, c.SyncPeriod)
	}
	return found
}

// section is the section of a file whose periods count in the mode.
func (c *Config) section() string {
	switch {
	case inIPVS(c.Mode):
		return "ipvs"
	case inNFTables(c.Mode):
		return "nftables"
	}
	return "iptables"
}

func onePerFamily(ps []netip.Prefix) bool {
	return len(ps) < 2 || len(ps) == 2 && ps[0].Addr().Is4() != ps[1].Addr().Is4()
}

// Finding is an error or a note about a configuration.
type Finding struct {
	Where string // "file:line", or empty
	Name  string // of the setting, or empty
	Text  string
}

// String returns the finding as one line.
func (f Finding) String() string {
	s := f.Text
	if f.Name != "" {
		s = f.Name + ": " + s
	}
	if f.Where != "" {
		s = f.Where + ": " + s
	}
	return s
}
