package userspace

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

var _ dataplane.Drainer = (*Driver)(nil)

const (
	// late is how long a relay still takes clients that an earlier rule led to it:
	// long enough for a SYN that is sent a second time, after a second.
	late = 2 * time.Second
	// draining is how long connections may go on in a mode that was left.
	draining = time.Hour
)

// Drain implements dataplane.Drainer. The ways into our chains go, and with the
// last connection of a relay its time is over. All else stays until then: without
// the address the kernel would lose their packets, and a mode that comes back
// before finds what it needs.
func (d *Driver) Drain(ctx context.Context) error {
	if err := d.shut(ctx); err != nil {
		return fmt.Errorf("leave new connections to others: %w", err)
	}
	d.server.Drain(ctx, draining)
	return ctx.Err()
}

// shut takes the ways in from the tables, the flows that were led to relays from
// the kernel, and has relays end that nobody is led to any more.
func (d *Driver) shut(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ways [2][]edit
	var stale []flows.Match
	for k, have := range d.rules {
		switch {
		case k.Kind == KindJump:
			ways[k.Family] = append(ways[k.Family], edit{verb: ledger.Delete, key: k, have: have})
		case tracked(k):
			stale = append(stale, d.ended(k))
		}
	}
	for f, list := range ways {
		if len(list) == 0 {
			continue
		}
		if err := d.table.Write(ctx, model.Family(f), list); err != nil {
			return err
		}
		for _, e := range list {
			delete(d.rules, e.key)
		}
	}
	for id := range d.relays {
		d.end(id)
	}
	d.forget(ctx, stale)
	return nil
}

// end lets a relay end that no rule leads to any more.
func (d *Driver) end(id RelayID) {
	if r := d.relays[id]; r != nil {
		delete(d.relays, id)
		r.Retire(late)
	}
}

// withdraw removes what no rule leads to any more.
func (d *Driver) withdraw(k Key) error {
	switch k.Kind {
	case KindShelter:
		return removeShelter(k.Family)
	case KindSink:
		err := d.sinks[k.Family].close()
		d.sinks[k.Family] = nil
		return err
	}
	d.end(k.Relay)
	return nil
}
