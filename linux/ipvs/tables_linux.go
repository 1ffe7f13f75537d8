package ipvs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/iptables"
)

// tables are the tables of iptables in one network namespace, in the variant
// that the host uses.
type tables struct {
	*iptables.Commands
	ns *host.Namespace
}

func openTables(c *iptables.Commands) (*tables, error) {
	ns, err := host.Here()
	if err != nil {
		return nil, err
	}
	return &tables{c, ns}, nil
}

func (t *tables) close() error { return t.ns.Close() }

// apply writes ops on chains and jumps: each table of each family as a whole or
// not at all. What fails in one family fails there alone.
func (t *tables) apply(ctx context.Context, ops []ledger.Op[Key, Value], errs []error) {
	for _, f := range model.Families() {
		text := restore(f, ops)
		if text == "" {
			continue
		}
		err := patiently(ctx, lockTime, func() error {
			return t.ns.Do(func() error { return t.Restore(ctx, f, text) })
		})
		for i, op := range ops {
			if op.Key.Family == f {
				errs[i] = err
			}
		}
	}
}

// lockTime is how long others may hold the lock of iptables, which all share.
const lockTime = 30 * time.Second

// patiently calls f until it is not busy any more, for a while. That it is still
// busy then is a failure like others: without its chains, nothing is served.
func patiently(ctx context.Context, limit time.Duration, f func() error) error {
	end := time.Now().Add(limit)
	for {
		err := f()
		var busy ledger.ErrBusy
		if !errors.As(err, &busy) {
			return err
		}
		if time.Now().Add(busy.After).After(end) {
			return fmt.Errorf("after %s: %v", limit, err) // busy no more
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(busy.After):
		}
	}
}

// observe reads our chains of a family.
func (t *tables) observe(ctx context.Context, f model.Family, emit func(Key, Value)) error {
	return t.ns.Do(func() error {
		text, err := t.Save(ctx, f, "")
		if err == nil {
			parseSave(f, text, emit)
		}
		return err
	})
}
