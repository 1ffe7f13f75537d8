// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// machine holds the facts of this machine; core/resolve interprets them
// for Services.
type machine struct {
	log       *slog.Logger
	addresses addresses // nil where they cannot be opened
	unread    bool      // the last attempt to read them failed

	mu    sync.Mutex
	facts model.Machine
}

// Listening tells on which of some places of this machine processes listen. It is used by one goroutine
// at a time.
type Listening interface {
	At(places []model.Listener) ([]model.Listener, error)
	Close() error
}

// openMachine reads the addresses of this machine for the first time, as far as
// they could be opened.
func openMachine(a addresses, err error, log *slog.Logger) *machine {
	m := &machine{log: log}
	if err == nil {
		m.addresses = a
		_, err = m.readAddresses()
	}
	if err != nil {
		log.Warn("reading this machine's addresses failed; only those of its Node object are protected from Services", "err", err)
	}
	return m
}

func (m *machine) close() error {
	if m == nil || m.addresses == nil {
		return nil
	}
	return m.addresses.Close()
}

// now returns the current facts. It is safe for concurrent use.
func (m *machine) now() model.Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.facts
}

// local reports whether an address is this machine's. It is safe for concurrent use.
func (m *machine) local(a netip.Addr) bool {
	return slices.ContainsFunc(m.now().Addresses, func(l model.LocalAddress) bool { return l.Prefix.Addr() == a })
}

// readAddresses reports whether they are others than before. After an error they
// are as before.
func (m *machine) readAddresses() (changed bool, err error) {
	all, err := m.addresses.List()
	if m.unread = err != nil; m.unread {
		return false, err
	}
	seen := make(map[model.LocalAddress]bool, len(all))
	all = slices.DeleteFunc(all, func(a model.LocalAddress) bool {
		again := seen[a]
		seen[a] = true
		return again
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	changed = !slices.Equal(all, m.facts.Addresses)
	m.facts.Addresses = all
	return changed, nil
}

// setAPIServers reports whether these are others than before. It is safe for
// concurrent use.
func (m *machine) setAPIServers(all []netip.AddrPort) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed = !slices.Equal(all, m.facts.APIServers)
	m.facts.APIServers = all
	return changed
}

// addressesEvery is the least time between two readings of the addresses.
const addressesEvery = 500 * time.Millisecond

// follow reads the addresses when they may have changed, or could not be read,
// and calls changed when they have, until ctx ends.
func (m *machine) follow(ctx context.Context, changed func()) {
	if m.addresses == nil {
		return
	}
	for sleep.For(ctx, addressesEvery) {
		again := m.unread
		if !again {
			if m.addresses.Wait(ctx); ctx.Err() != nil {
				return
			}
			if !m.addresses.Changed() {
				continue
			}
		}
		differ, err := m.readAddresses()
		if err != nil && !again {
			m.log.Warn("reading this machine's addresses failed; retrying", "err", err)
		}
		if differ {
			changed()
		}
	}
}
