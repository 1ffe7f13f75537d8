package iptables

import (
	"context"
	"fmt"
	"runtime"

	"github.com/tandem-proxy/tandem/core/model"
)

// Commands are those of the variant that this host uses, for another mode that
// keeps chains of its own. They work in the network namespace of the thread that
// calls them. Safe for concurrent use.
type Commands struct {
	tools    tools
	families []model.Family
	random   bool
}

// FindCommands finds the commands, and writes nothing. The error has
// dataplane.ErrAbsent in it where there are none.
func FindCommands(ctx context.Context) (*Commands, error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	best, _, err := inUse(ctx)
	if err != nil {
		return nil, err
	}
	return &Commands{best.tools, best.families, !best.noRandomFully}, nil
}

// Families are those that there are tables for. IPv4 is always among them.
func (c *Commands) Families() []model.Family { return c.families }

// RandomFully reports whether MASQUERADE can choose ports at random.
func (c *Commands) RandomFully() bool { return c.random }

// Save lists a table as iptables-save does; "" stands for all that are there, and
// makes none.
func (c *Commands) Save(ctx context.Context, f model.Family, table string) (string, error) {
	var args []string
	if table != "" {
		args = []string{"-t", table}
	}
	out, err := run(ctx, nil, c.tools.family[f].save, args...)
	if err != nil {
		return "", fmt.Errorf("%s tables: %w", f, err)
	}
	return string(out), nil
}

// Restore runs transactions, as iptables-restore reads them: each table is
// written as a whole or not at all. An error may leave open which. Others may hold
// the lock for a while; that they still do is a failure like others, and never
// busy: without its chains a mode serves nothing.
func (c *Commands) Restore(ctx context.Context, f model.Family, text string) error {
	if err := c.tools.restorePatiently(ctx, f, []byte(text)); err != nil {
		return fmt.Errorf("%s tables: %w", f, err)
	}
	return nil
}
