package iptables

import (
	"context"
	"runtime"

	"github.com/tandem-proxy/tandem/core/model"
)

// NATTable is the nat table in the variant that this host uses, for another mode
// that keeps rules of its own in it. It is used by one goroutine at a time, but
// for Read.
type NATTable struct {
	commands *Commands
	watch    *watch
}

// OpenNAT finds the commands, and writes nothing. Close it after use. IPv4 is
// always among its families.
func OpenNAT(ctx context.Context) (*NATTable, error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	c, err := FindCommands(ctx)
	if err != nil {
		return nil, err
	}
	w, err := openWatch(c.tools.variant, c.families)
	if err != nil {
		return nil, err
	}
	return &NATTable{c, w}, nil
}

// Close ends the use of the table, which stays as it is.
func (n *NATTable) Close() error { return n.watch.close() }

// Families are those that there is a table for.
func (n *NATTable) Families() []model.Family { return n.commands.families }

// Reading says that all tables are about to be read: what others have done so
// far is no news then.
func (n *NATTable) Reading() { n.watch.beforeRead() }

// Read lists the table as iptables-save does.
func (n *NATTable) Read(ctx context.Context, f model.Family) (string, error) {
	return n.commands.Save(ctx, f, NAT.String())
}

// Restore runs a transaction, as iptables-restore reads it: all of it or
// nothing. An error may leave open which.
func (n *NATTable) Restore(ctx context.Context, f model.Family, text string) error {
	n.watch.beforeWrite()
	if err := n.commands.Restore(ctx, f, text); err != nil {
		n.watch.suspect()
		return err
	}
	n.watch.afterWrite(1)
	return nil
}

// Disturbed reports whether somebody else may have written to the tables since
// Reading.
func (n *NATTable) Disturbed() (bool, error) { return n.watch.disturbed() }
