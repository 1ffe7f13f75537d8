package userspace

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// withdraw removes what no rule leads to any more.
func (d *Driver) withdraw(ctx context.Context, k Key) error {
	switch k.Kind {
	case KindShelter:
		return d.leave(ctx, k.Family)
	case KindSink:
		err := d.sinks[k.Family].close()
		d.sinks[k.Family] = nil
		return err
	}
	if r := d.relays[k.Relay]; r != nil {
		delete(d.relays, k.Relay)
		r.Retire(late)
	}
	return nil
}

const (
	// late is how long a relay still takes clients that an earlier rule led to it:
	// long enough for a SYN that is sent a second time, after a second.
	late = 2 * time.Second
	// draining is how long connections may go on in a mode that was left.
	draining = time.Hour
)

// leave removes the shelter when the last connection to it has ended: without
// it the kernel would lose their packets. When by then the mode has come back,
// the shelter is needed.
func (d *Driver) leave(ctx context.Context, f model.Family) error {
	d.server.Drain(ctx, draining)
	ctx = context.WithoutCancel(ctx) // what was begun is finished
	rules, err := d.table.Read(ctx)
	if _, back := rules[Key{Kind: KindChain, Family: f, Chain: chainIn}]; back || err != nil {
		return err
	}
	return removeShelter(f)
}
