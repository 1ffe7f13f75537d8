// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

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

// probe tries to assign an address.
func probe(context.Context) error {
	a, err := findAdapter()
	if err != nil {
		return err
	}
	err = tryAddress(a, func(err error) bool { return errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) })
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		err = fmt.Errorf("%w; run as Administrator", err)
	}
	return err
}
