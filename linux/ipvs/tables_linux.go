package ipvs

import (
	"context"
	"fmt"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// tables are the tables of iptables in one network namespace, in the variant
// that the host uses.
type tables struct {
	*xtables.Commands
	ns *host.Namespace
}

func openTables(c *xtables.Commands) (*tables, error) {
	ns, err := host.Here()
	if err != nil {
		return nil, err
	}
	return &tables{c, ns}, nil
}

func (t *tables) close() error { return t.ns.Close() }

// apply writes ops on chains and jumps: each table of each family as a whole or
// not at all. What fails in one family fails there alone, and leaves open which
// tables were written before.
func (t *tables) apply(ctx context.Context, ops []ledger.Op[Key, Value], errs []error) {
	for _, f := range model.Families() {
		text := restore(f, ops)
		if text == nil {
			continue
		}
		err := t.ns.Do(func() error { return t.RestorePatiently(ctx, f, text) })
		if err != nil {
			err = fmt.Errorf("%s tables: %w: %w", f, err, ledger.ErrUnknown)
		}
		for i, op := range ops {
			if op.Key.Family == f {
				errs[i] = err
			}
		}
	}
}

// observe reads our chains of a family.
func (t *tables) observe(ctx context.Context, f model.Family, emit func(Key, Value)) error {
	return t.ns.Do(func() error {
		text, err := t.SaveAll(ctx, f)
		if err != nil {
			return fmt.Errorf("%s tables: %w", f, err)
		}
		return readTables(f, text, emit)
	})
}
