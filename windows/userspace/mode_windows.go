// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/relay/direct"
)

func open(_ context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
	a, err := findAdapter()
	if err != nil {
		return nil, err
	}
	if a.loopback {
		log.Warn("no adapter for containers; Services are reachable from this node only", "missing", preferred)
	}
	d := direct.Open(direct.Options{Addresses: a, Relay: relay.Options{TCP: relay.TimeoutsOf(c), Log: log}})
	return direct.NewBackend(placement(a.loopback), d), nil
}

// probe assigns an address for benchmarks (RFC 2544) and removes it again.
func probe(context.Context) error {
	a, err := findAdapter()
	if err != nil {
		return err
	}
	scratch := netip.AddrFrom4([4]byte{198, 18, 84, 1})
	if err := a.Add(scratch); err != nil {
		if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			err = fmt.Errorf("%w; run as Administrator", err)
		}
		return err
	}
	return a.Remove(scratch)
}
