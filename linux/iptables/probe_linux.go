package iptables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/tandem-proxy/tandem/core/model"
)

// candidate is a variant that may work, and what is known of it.
type candidate struct {
	tools         tools
	families      []model.Family
	noRandomFully bool
	without       error // why IPv6 is left out
}

// probe finds out whether this host can do what we need, by doing it in chains
// that no packet enters. The error says what is missing.
func probe(ctx context.Context) error {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	found, err := findTools(ctx)
	if err != nil {
		return err
	}
	if found, err = choose(ctx, found); err != nil {
		return err
	}
	_, err = first(ctx, found, (*candidate).try)
	return err
}

// first returns the first variant that passes a test for IPv4, which every node
// needs, and for which other families.
func first(ctx context.Context, found []tools, test func(*candidate, context.Context, model.Family) error) (*candidate, error) {
	var failed []error
	for _, t := range found {
		c := &candidate{tools: t}
		err := c.families4and6(ctx, test)
		if err == nil {
			return c, nil
		}
		failed = append(failed, fmt.Errorf("iptables, %s variant: %w", t.variant, err))
	}
	return nil, errors.Join(failed...)
}

func (c *candidate) families4and6(ctx context.Context, test func(*candidate, context.Context, model.Family) error) error {
	for _, f := range c.tools.families() {
		err := test(c, ctx, f)
		switch {
		case err == nil:
			c.families = append(c.families, f)
		case f == model.IPv4 || ctx.Err() != nil:
			return err
		default:
			c.without = err
		}
	}
	return nil
}

// read tests whether the tables of a family can be read, without writing
// anything.
func (c *candidate) read(ctx context.Context, f model.Family) error {
	if _, err := c.command(f); err != nil {
		return err
	}
	_, err := c.tools.read(ctx, f, false)
	return err
}

// command returns the command of a family, and notes what it cannot do.
func (c *candidate) command(f model.Family) (*iptables.IPTables, error) {
	path := c.tools.family[f].command
	command, err := iptables.New(iptables.IPFamily(iptables.Protocol(f)), iptables.Path(path), iptables.Timeout(5))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if a, b, p := command.GetIptablesVersion(); a < 1 || a == 1 && (b < 6 || b == 6 && p < 2) {
		return nil, fmt.Errorf("%s %d.%d.%d is too old: 1.6.2 or later is needed", path, a, b, p)
	}
	c.noRandomFully = c.noRandomFully || !command.HasRandomFully()
	return command, nil
}

// try tests a family by writing.
func (c *candidate) try(ctx context.Context, f model.Family) error {
	command, err := c.command(f)
	if err != nil {
		return err
	}
	for _, t := range []Table{Filter, NAT} {
		if err := c.table(ctx, command, f, t); err != nil {
			return fmt.Errorf("%s table %s: %w", f, t, err)
		}
	}
	return nil
}

// table writes rules of every kind into a scratch chain, and reads them back.
func (c *candidate) table(ctx context.Context, command *iptables.IPTables, family model.Family, t Table) error {
	name := fmt.Sprintf("TANDEM-PROBE-%08X", rand.Uint32())
	rules := probeRules(family, t, !c.noRandomFully)
	var s script
	s.rewrite(name, rules)
	if err := c.tools.restorePatiently(ctx, family, s.text(t)); err != nil {
		return err
	}
	have, listed := command.List(t.String(), name)
	if err := errors.Join(listed, command.ClearAndDeleteChain(t.String(), name)); err != nil {
		return err
	}
	var read []string
	for _, l := range have {
		if rest, ok := strings.CutPrefix(l, "-A "+name+" "); ok {
			read = append(read, rest)
		}
	}
	if canonical(read) != Value(strings.Join(texts(rules), "")) {
		return fmt.Errorf("rules do not come back as they were written: %q for %q", read, rules)
	}
	return nil
}

func texts(vs []Value) (all []string) {
	for _, v := range vs {
		all = append(all, string(v))
	}
	return all
}
