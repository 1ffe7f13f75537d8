// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
	"github.com/tandem-proxy/tandem/core/watch"
)

// Simulation is a machine in memory, on which ci/simulate runs whole proxies.
// Everything that a Proxy uses of a system is here: nothing of the real machine is
// touched.
type Simulation struct {
	Modes     []dataplane.Mode
	Lock      func() (io.Closer, error) // as Lock
	Control   func() (net.Listener, error)
	Listen    func(ctx context.Context, network, address string) (net.Listener, error)
	Dial      watch.Dialer // to the API server
	Addresses func() ([]model.LocalAddress, error)
	Flows     flows.Table
}

// Open opens a proxy on the simulated machine.
func (m Simulation) Open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	s := portable()
	s.lock = func() (Held, error) {
		held, err := m.Lock()
		return simulatedLock{held, m.Control}, err
	}
	s.network = func() (network, error) { return simulatedNetwork{m.Listen}, nil }
	s.addresses = func() (addresses, error) { return simulatedAddresses(m.Addresses), nil }
	s.flows = func() (flowTable, error) { return simulatedFlows{m.Flows}, nil }
	s.modes = func() []dataplane.Mode { return m.Modes }
	s.garbage, s.collect = func(int) {}, func() {}
	s.dial = m.Dial
	return s.open(ctx, c, version, log)
}

type simulatedLock struct {
	io.Closer
	listen func() (net.Listener, error)
}

func (l simulatedLock) Listen() (net.Listener, error) { return l.listen() }

type simulatedNetwork struct {
	listen func(ctx context.Context, network, address string) (net.Listener, error)
}

func (simulatedNetwork) Do(f func() error) error { return f() }
func (simulatedNetwork) Close() error            { return nil }

func (n simulatedNetwork) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return n.listen(ctx, network, address)
}

type simulatedFlows struct{ flows.Table }

func (simulatedFlows) Close() error { return nil }

func (simulatedFlows) DeleteThese(context.Context, []suspect.Flow, func(flows.Flow) bool) (int, error) {
	return 0, errors.ErrUnsupported // new connections are not shown, so none are known
}

type simulatedAddresses func() ([]model.LocalAddress, error)

func (a simulatedAddresses) List() ([]model.LocalAddress, error) { return a() }
func (simulatedAddresses) Wait(context.Context)                  {}
func (simulatedAddresses) Changed() bool                         { return true }
func (simulatedAddresses) Close() error                          { return nil }
