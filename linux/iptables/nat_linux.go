package iptables

import (
	"context"
	"fmt"
	"runtime"

	"github.com/tandem-proxy/tandem/core/model"
)

// NATTable is the nat table in the variant that this host uses, for another mode
// that keeps rules of its own in it. It is used by one goroutine at a time, but
// for Read.
type NATTable struct {
	tools    tools
	families []model.Family
	watch    *watch
}

// OpenNAT finds the commands, and writes nothing. Close it after use. IPv4 is
// always among its families.
func OpenNAT(ctx context.Context) (*NATTable, error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	best, _, err := inUse(ctx)
	if err != nil {
		return nil, err
	}
	w, err := openWatch(best.tools.variant, best.families)
	if err != nil {
		return nil, err
	}
	return &NATTable{best.tools, best.families, w}, nil
}

// Close ends the use of the table, which stays as it is.
func (n *NATTable) Close() error { return n.watch.close() }

// Families are those that there is a table for.
func (n *NATTable) Families() []model.Family { return n.families }

// Reading says that all tables are about to be read: what others have done so
// far is no news then.
func (n *NATTable) Reading() { n.watch.beforeRead() }

// Read lists the table as iptables-save does.
func (n *NATTable) Read(ctx context.Context, f model.Family) (string, error) {
	out, err := run(ctx, nil, n.tools.family[f].save, "-t", NAT.String())
	if err != nil {
		return "", fmt.Errorf("%s nat table: %w", f, err)
	}
	return string(out), nil
}

// Restore runs a transaction, as iptables-restore reads it: all of it or
// nothing. An error may leave open which.
func (n *NATTable) Restore(ctx context.Context, f model.Family, text string) error {
	n.watch.beforeWrite()
	err := n.tools.restore(ctx, f, []byte(text))
	if err != nil {
		n.watch.suspect()
		return fmt.Errorf("%s nat table: %w", f, err)
	}
	n.watch.afterWrite(1)
	return nil
}

// Disturbed reports whether somebody else may have written to the tables since
// Reading.
func (n *NATTable) Disturbed() (bool, error) { return n.watch.disturbed() }
