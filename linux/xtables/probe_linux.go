// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Commands are the tools of one variant, and the features that they support on this host. They work
// in the network namespace of the thread that calls them, and are safe for concurrent use.
type Commands struct {
	Tools
	// Families are the families whose tables work. IPv4 is always among them.
	Families []model.Family
	// IPv6Error is why IPv6 is not in Families although there are commands for it.
	IPv6Error error

	noRandomFully bool
}

// RandomFully reports whether MASQUERADE can choose ports at random.
func (c *Commands) RandomFully() bool { return !c.noRandomFully }

// Find returns the commands of the variant that this host uses, and all installed
// tools. It writes nothing. Unlike Probe it accepts hosts with rules of both
// variants, since they may be rules to remove. The error wraps dataplane.ErrAbsent if
// there are no commands.
func Find(ctx context.Context) (best *Commands, installed []Tools, err error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	if installed, err = FindTools(ctx); err != nil {
		return nil, nil, err
	}
	chosen, err := Choose(ctx, installed)
	switch {
	case errors.Is(err, ErrMixed):
		chosen = installed
	case err != nil:
		return nil, nil, err
	}
	best, err = firstWorking(ctx, chosen, (*Commands).canRead)
	return best, installed, err
}

// ProbeRules returns a rule of each kind that a mode writes to a table.
type ProbeRules func(f model.Family, t Table, randomFully bool) []Rule

// Probe returns an error if this host does not support a mode's rules in the tables filter
// and nat: it writes them to chains that no packet enters. The error states what is
// missing.
func Probe(ctx context.Context, rules ProbeRules) error {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	found, err := FindTools(ctx)
	if err != nil {
		return err
	}
	if found, err = Choose(ctx, found); err != nil {
		return err
	}
	lock, err := host.LockProbe(ctx)
	if err != nil {
		return host.Undecided(err)
	}
	defer lock.Close()
	_, err = firstWorking(ctx, found, func(c *Commands, ctx context.Context, f model.Family) error {
		return c.Try(ctx, f, rules, Filter, NAT)
	})
	return err
}

// firstWorking returns the first variant that passes a test for IPv4, with the families that
// passed.
func firstWorking(ctx context.Context, found []Tools, test func(*Commands, context.Context, model.Family) error) (*Commands, error) {
	all := make([]*Commands, len(found))
	for i, t := range found {
		all[i] = &Commands{Tools: t}
	}
	best, err := dataplane.FirstWorking(ctx, all, func(ctx context.Context, c *Commands) error {
		if err := c.testFamilies(ctx, test); err != nil {
			return fmt.Errorf("iptables, %s variant: %w", c.Variant, host.Undecided(err)) // rules may be in this variant
		}
		return nil
	})
	if best == nil {
		return nil, err
	}
	return *best, nil
}

func (c *Commands) testFamilies(ctx context.Context, test func(*Commands, context.Context, model.Family) error) error {
	for _, f := range c.Installed() {
		err := test(c, ctx, f)
		switch {
		case err == nil:
			c.Families = append(c.Families, f)
		case f == model.IPv4 || ctx.Err() != nil:
			return err
		default:
			c.IPv6Error = err
		}
	}
	return nil
}

// canRead tests whether the tables of a family can be read, without writing
// anything.
func (c *Commands) canRead(ctx context.Context, f model.Family) error {
	if _, err := c.command(f); err != nil {
		return err
	}
	_, err := c.Save(ctx, f, Filter, NAT)
	return err
}

// command returns the command of a family, and notes whether it lacks --random-fully.
func (c *Commands) command(f model.Family) (*iptables.IPTables, error) {
	path := c.Paths[f].Command
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

// Try tests a family by writing rules to some tables, and deletes tables that it creates.
// The caller holds host.LockProbe.
func (c *Commands) Try(ctx context.Context, f model.Family, rules ProbeRules, tables ...Table) (err error) {
	command, err := c.command(f)
	if err != nil {
		return err
	}
	deleteNew, err := c.KeepTables(ctx, f, tables...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, deleteNew(context.WithoutCancel(ctx))) }()
	for _, t := range tables {
		if err := c.tryTable(ctx, command, f, t, rules(f, t, c.RandomFully())); err != nil {
			return fmt.Errorf("%s table %s: %w", f, t, err)
		}
	}
	return nil
}

// KeepTables returns a function that deletes those of the tables that were created since and
// are empty: the nft variant creates every table that it lists. Tables of the legacy variant are
// the kernel's, and stay.
func (t Tools) KeepTables(ctx context.Context, f model.Family, tables ...Table) (deleteNew func(context.Context) error, err error) {
	if t.Variant != NFT {
		return func(context.Context) error { return nil }, nil
	}
	return nft.KeepTables(ctx, f, names(tables)...)
}

func names(tables []Table) (all []string) {
	for _, t := range tables {
		all = append(all, t.String())
	}
	return all
}

// DeleteBare deletes those of the tables that have only built-in chains, with policy ACCEPT and
// without rules. Tables of the legacy variant are the kernel's, and stay.
func (t Tools) DeleteBare(ctx context.Context, families []model.Family, tables ...Table) (err error) {
	for _, f := range families {
		err = errors.Join(err, t.deleteBare(ctx, f, names(tables)...))
	}
	return err
}

func (t Tools) deleteBare(ctx context.Context, f model.Family, tables ...string) error {
	if t.Variant != NFT {
		return nil
	}
	return nft.DeleteBare(ctx, f, tables...)
}

// RemoveScratch deletes the chains that killed probes have left in tables of the installed
// variants, and tables that are empty then. The nft variant is skipped if it cannot be read, since the
// kernel may lack nf_tables; other errors, and ErrIncompatible, are returned.
func RemoveScratch(ctx context.Context, installed []Tools) (err error) {
	lock, err := host.LockProbe(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	for _, t := range installed {
		for _, f := range t.Installed() {
			from, failed := t.DeleteScratch(ctx, f)
			if failed == nil {
				failed = t.deleteBare(ctx, f, from...)
			} else if t.Variant == NFT && !errors.Is(failed, ErrIncompatible) {
				continue
			}
			err = errors.Join(err, failed)
		}
	}
	return err
}

// ScratchChain is the chain that probes write in every table.
const ScratchChain = "TANDEM-PROBE"

// DeleteScratch deletes the chains that a killed probe has left in the tables of a
// family, and returns the names of these tables. It creates no table. The caller holds
// host.LockProbe.
func (t Tools) DeleteScratch(ctx context.Context, f model.Family) (from []string, err error) {
	text, err := t.SaveAll(ctx, f)
	if err != nil {
		return nil, err
	}
	have, err := ParseSave(text)
	if err != nil {
		return nil, err
	}
	var clean []byte
	for _, table := range have {
		for _, c := range table.Chains {
			if c.Name == ScratchChain {
				clean = append(clean, withoutScratch(table.Name)...)
				from = append(from, table.Name)
			}
		}
	}
	if len(clean) == 0 {
		return nil, nil
	}
	return from, t.RestoreWait(ctx, f, clean)
}

// withoutScratch is the script that deletes the scratch chain of a table.
func withoutScratch(table string) []byte {
	return fmt.Appendf(nil, "*%s\n-F %s\n-X %s\nCOMMIT\n", table, ScratchChain, ScratchChain)
}

// tryTable writes rules into a scratch chain, and reads them back.
func (c *Commands) tryTable(ctx context.Context, command *iptables.IPTables, family model.Family, t Table, rules []Rule) error {
	var s Script
	s.Rewrite(ScratchChain, List(rules...))
	if err := c.RestoreWait(ctx, family, s.Text(t)); err != nil {
		return err
	}
	have, listed := command.List(t.String(), ScratchChain)
	if err := errors.Join(listed, c.RestoreWait(ctx, family, withoutScratch(t.String()))); err != nil {
		return err
	}
	var read []Line
	for _, l := range have {
		if rest, ok := strings.CutPrefix(l, "-A "+ScratchChain+" "); ok {
			read = append(read, Line(rest))
		}
	}
	if Canonical(read...) != List(rules...) {
		return fmt.Errorf("rules read back differ: read %q, written %q", read, List(rules...))
	}
	return nil
}

// AddFacts adds the facts about iptables for tandem doctor, without creating tables: rules
// that packets meet before those of Services, and the policy of FORWARD. Tables that cannot be
// read are left out.
func AddFacts(ctx context.Context, f *diagnosis.Facts) {
	tools, err := FindTools(ctx)
	if err != nil {
		return
	}
	f.EarlyRules = []string{}
	for _, t := range tools {
		for _, family := range t.Installed() {
			if t.Variant == Legacy && family == model.IPv4 {
				f.LegacyTables, _ = legacyTables(family) // nil is unknown
			}
			there, err := t.Present(family, Filter, NAT)
			if err != nil {
				continue
			}
			text, err := t.Save(ctx, family, there...)
			if err != nil {
				continue
			}
			early, drop := early(text)
			f.EarlyRules = append(f.EarlyRules, early...)
			if drop && t.Variant == Legacy { // nft.BaseChains reports that of the nft variant
				f.ForwardDrop = append(f.ForwardDrop, family.String()+" FORWARD (iptables-legacy)")
			}
		}
	}
}

// tablesOfVariantNFT are the names that iptables-nft gives to its tables in nf_tables.
var tablesOfVariantNFT = [...]string{"filter", "nat", "mangle", "raw", "security"}

// Others describes rules of other programs that packets traverse before owned ones: in built-in
// chains before the first jump to an owned chain, and in nf_tables. It reads the
// network namespace of the calling thread.
func (t Tools) Others(ctx context.Context, families []model.Family, owned func(chain string) bool) (texts []string, err error) {
	for _, f := range families {
		there, err := t.Present(f, Filter, NAT)
		if err != nil {
			return nil, err
		}
		saved, err := t.Save(ctx, f, there...)
		if err != nil {
			return nil, err
		}
		tables, err := ParseSave(saved)
		if err != nil {
			return nil, err
		}
		for _, table := range tables {
			for _, c := range table.Chains {
				texts = append(texts, ahead(f, table.Name, c, owned)...)
			}
		}
	}
	texts = firstAhead(texts)
	var own []string
	if t.Variant == NFT {
		own = tablesOfVariantNFT[:]
	}
	// It opens a socket, and closing one delays changes (nft.Counts), but the commands above have closed four
	// already: it takes 0.1 ms of 20, and delays no change measurably.
	more, err := nft.Others(ctx, own...)
	if errors.Is(err, dataplane.ErrAbsent) { // a kernel without nf_tables has no such chains
		err = nil
	}
	return append(texts, more...), err
}
