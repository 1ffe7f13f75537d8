// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// SetSuspects replaces the addresses of endpoints that have stopped answering.
func (e *Engine) SetSuspects(s model.Suspects) {
	e.inbox.put(task{about: subject{kind: theSuspects}, do: func(since time.Time) {
		e.tracker.SetSuspects(s)
		e.change(since)
	}})
}

// RemoteOf returns the ready endpoints on other nodes that a TCP frontend may lead to, or
// those of the Service where the frontend is the zero value.
func (e *Engine) RemoteOf(ctx context.Context, frontend netip.AddrPort, of model.ServiceName) ([]track.Endpoint, error) {
	return ask(ctx, e.inbox, func() []track.Endpoint { return e.tracker.RemoteOf(frontend, of) })
}

// RemoteAt returns the ready TCP endpoints on other nodes that have an address, those of all Services.
func (e *Engine) RemoteAt(ctx context.Context, a netip.Addr) ([]track.Endpoint, error) {
	return ask(ctx, e.inbox, func() []track.Endpoint { return e.tracker.RemoteAt(a) })
}
