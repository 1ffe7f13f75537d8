// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/conntrack"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// netAdmin means that this process may not program its network namespace. The kernel
// checks the capability, not the user.
func netAdmin() (lacks string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil || sets[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0 {
		return "" // unknown: the modes find out
	}
	return "CAP_NET_ADMIN"
}

func thisSystem() system {
	s := portable()
	s.privileged = netAdmin
	s.lock = lockNamespace
	s.dialControl = dialNamespace
	s.network = func() (network, error) { return host.OpenNamespace() }
	s.addresses = func() (addresses, error) { return host.OpenAddresses(host.Dummies) }
	s.salt = machineSalt
	s.listeners = func() (Listening, error) { return host.OpenListeners() }
	s.observe = func() (tracked, error) { return conntrack.Follow() }
	s.flows = func() (flowTable, error) { return conntrack.Open() }
	s.live = followLive
	s.writers = openWriters
	s.listFlows = func() flowLister { return conntrack.NewReader() }
	s.facts = linuxFacts
	s.prepare = prepare
	s.limitMemory = limitMemoryToCgroup
	s.releaseText = releaseMappedText
	s.handover = func(log *slog.Logger) func() relay.Handover { return host.OpenHandover(log).User }
	return s
}

// prepare sets the kernel parameters that a configuration asks for.
func prepare(c *config.Config, log *slog.Logger) []error {
	failed := host.Prepare("/", c, log)
	if c.Mode == ipvs.Name {
		if err := ipvs.Prepare(c, log); err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

// nftWriters are the processes that write to nf_tables: the rules of nftables and of
// iptables-nft.
type nftWriters struct{ *nft.Writers }

func openWriters() (writers, error) {
	w, err := nft.OpenWriters()
	if err != nil {
		return nil, err
	}
	return nftWriters{w}, nil
}

var _ writers = nftWriters{}

func (w nftWriters) Since(t time.Time) engine.Candidates {
	found, all := w.Writers.Since(t)
	c := engine.Candidates{Incomplete: !all}
	for _, one := range found {
		c.Writers = append(c.Writers, engine.Writer(one))
	}
	return c
}
