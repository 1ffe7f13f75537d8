package platform

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// addresses are those of this machine.
type addresses interface {
	List() ([]model.LocalAddress, error)
	Changed() bool // since the last call, as far as is known; cheap
	Close() error
}

// facts are what this machine says of itself: core/resolve decides what that means
// for Services. They are safe for concurrent use.
type facts struct {
	mu      sync.Mutex
	machine model.Machine
}

func (f *facts) now() model.Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.machine
}

// setAddresses reports whether these are others than before.
func (f *facts) setAddresses(all []model.LocalAddress) (changed bool) {
	slices.SortFunc(all, func(a, b model.LocalAddress) int {
		if c := a.Prefix.Addr().Compare(b.Prefix.Addr()); c != 0 {
			return c
		}
		return a.Prefix.Bits() - b.Prefix.Bits()
	})
	all = slices.Compact(all)
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = !slices.Equal(all, f.machine.Addresses)
	f.machine.Addresses = all
	return changed
}

// setAPIServers reports whether these are others than before.
func (f *facts) setAPIServers(all []netip.AddrPort) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = !slices.Equal(all, f.machine.APIServers)
	f.machine.APIServers = all
	return changed
}

// LocalAddresses returns the addresses of this machine, read once, for tools that
// compare with what a running proxy has done.
func LocalAddresses() ([]model.LocalAddress, error) {
	a, err := openAddresses()
	if err != nil {
		return nil, err
	}
	defer a.Close()
	return a.List()
}

// openFacts reads the addresses of this machine for the first time, as far as they
// could be opened.
func (p *Proxy) openFacts(a addresses, err error) {
	if err == nil {
		p.addresses = a
		err = p.lookAtAddresses()
	}
	if err != nil {
		p.log.Warn("reading this machine's addresses failed; only those of its Node object are protected from Services", "error", err)
	}
}

// lookAtAddresses reads the addresses, and tells the engine when they have changed.
// What cannot be read stays as it was.
func (p *Proxy) lookAtAddresses() error {
	all, err := p.addresses.List()
	if p.unread = err != nil; p.unread {
		return err
	}
	if p.facts.setAddresses(all) && p.Engine != nil {
		p.Engine.HostChanged()
	}
	return nil
}

// addressesEvery is how often news of addresses is looked for.
const addressesEvery = 500 * time.Millisecond

// followAddresses looks at the addresses whenever they may have changed, or could
// not be read.
func (p *Proxy) followAddresses(ctx context.Context) {
	if p.addresses == nil {
		return
	}
	tick := time.NewTicker(addressesEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		again := p.unread
		if !p.addresses.Changed() && !again {
			continue
		}
		if err := p.lookAtAddresses(); err != nil && !again {
			p.log.Warn("reading this machine's addresses failed; retrying", "error", err)
		}
	}
}

// connected takes the addresses of the API server. It is called for each new
// connection.
func (p *Proxy) connected(all []netip.AddrPort) {
	if p.facts.setAPIServers(all) {
		p.Engine.HostChanged()
	}
}
