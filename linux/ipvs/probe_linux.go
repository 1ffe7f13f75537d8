// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// What a probe makes, beside xtables.ScratchChain: one link, routing rule and set at a
// time or family. No packet meets them.
const (
	scratchLink  = "tandem-probe"
	scratchTable = routeTable + 1 // without routes
	scratchMark  = ^uint32(0)
)

func scratchSet(s SetID, f model.Family) string {
	return fmt.Sprintf("TANDEM-PROBE-%d-%d", [...]int{4, 6}[f], s)
}

// probe tries IPv4, which every node needs.
func probe(ctx context.Context) error {
	return host.Undecided(Probe(ctx, Options{Families: []model.Family{model.IPv4}}))
}

// Probe finds out whether this machine supports the mode: it makes objects of every
// kind in the network namespace of the calling thread, and deletes them. It needs what
// the mode needs, CAP_NET_ADMIN and CAP_NET_RAW; a namespace of its own would need
// CAP_SYS_ADMIN. The error states what is missing and what to do about it.
func Probe(ctx context.Context, o Options) (err error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	commands, _, err := xtables.Find(ctx)
	if err != nil {
		return fmt.Errorf("ipvs mode: %w", err)
	}
	o.NoRandomFully = !commands.RandomFully()
	if err := virtualserver.Load(); err != nil {
		return err
	}
	lock, err := host.LockProbe(ctx)
	if err != nil {
		return fmt.Errorf("ipvs mode: %w", err)
	}
	defer lock.Close()
	k, err := connect()
	if err != nil {
		return err
	}
	defer k.close()
	err = k.sweep(ctx, commands, o.families())
	if err == nil {
		err = k.tryAll(ctx, o, commands)
	}
	err = errors.Join(err, k.deleteScratch(context.WithoutCancel(ctx), o.families()))
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("ipvs mode: %w; it needs root, or CAP_NET_ADMIN and CAP_NET_RAW", err)
	case err != nil:
		return fmt.Errorf("ipvs mode does not work here: %w", err)
	}
	return nil
}

// tryAll makes the scratch objects. The base objects name what the mode needs.
func (k *sockets) tryAll(ctx context.Context, o Options, commands *xtables.Commands) error {
	if err := tracking().Check("/"); err != nil {
		return err
	}
	if err := k.servers.CheckScheduler(flagOwned, o.scheduler()); err != nil {
		return err
	}
	if err := k.links.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: scratchLink}}); err != nil {
		return fmt.Errorf("link %s: %w; the kernel module is dummy", scratchLink, err)
	}
	for _, f := range o.families() {
		if err := k.links.RuleAdd(scratchRule(f)); err != nil {
			return fmt.Errorf("%s routing rule: %w", f, err)
		}
		for s := noSet + 1; s < numSets; s++ {
			if err := k.trySet(ctx, scratchDefinition(s, f)); err != nil {
				return fmt.Errorf("%w; the kernel modules are ip_set and ip_set_{hash_ipport,hash_ipportip,hash_ipportnet,hash_ip,hash_net,bitmap_port}", err)
			}
		}
		if err := commands.Try(ctx, f, NewCompiler(o).scratchRules, ownedTables[:]...); err != nil {
			return fmt.Errorf("%w; the kernel modules are iptable_{mangle,nat,filter} and xt_{set,mark,comment,conntrack,addrtype,MASQUERADE}; ipsets in rules need CAP_NET_RAW", err)
		}
	}
	return nil
}

// trySet makes a set and reads it back.
func (k *sockets) trySet(ctx context.Context, want ipset.Set) error {
	if err := k.sets.Create(ctx, want); err != nil {
		return err
	}
	have, _, err := k.sets.List(ctx, want.Name)
	if err == nil && have != want {
		err = fmt.Errorf("ipset %s read back differs from what was written", want.Name)
	}
	return err
}

func scratchDefinition(s SetID, f model.Family) ipset.Set {
	d := definition(Key{Kind: KindSet, Family: f, Set: s})
	d.Name = scratchSet(s, f)
	return d
}

func scratchRule(f model.Family) *netlink.Rule {
	rule := routeRule(f, scratchMark)
	rule.Table = scratchTable
	return rule
}

// scratchRules are the different rules of all chains of a table, but for those that lead
// to other chains, with scratch sets (xtables.ProbeRules).
func (c *Compiler) scratchRules(f model.Family, t xtables.Table, _ bool) (rules []xtables.Rule) {
	for id, all := range c.chains(f, probeHost()) {
		if ChainID(id).table() != t {
			continue
		}
		for _, r := range all {
			r = withScratchSets(r)
			same := func(o xtables.Rule) bool { return o.Equal(r) }
			if r.Chain() == "" && !slices.ContainsFunc(rules, same) {
				rules = append(rules, r)
			}
		}
	}
	return rules
}

func withScratchSets(r xtables.Rule) xtables.Rule {
	name := func(set string) string { return scratchSet(setNamed(set)) }
	r.Matches = slices.Clone(r.Matches)
	for i, m := range r.Matches {
		if in, ok := m.(xtables.InSet); ok {
			in.Set = name(in.Set)
			r.Matches[i] = in
		}
	}
	if t, ok := r.Target.(xtables.MapMark); ok {
		t.Set = name(t.Set)
		r.Target = t
	}
	return r
}

// probeHost has pods, which some rules are for.
func probeHost() *model.Host {
	return &model.Host{Pods: model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}}}
}

// sweep deletes what a probe that was killed has left, but for its virtual server, which
// is marked as owned. The caller has host.LockProbe.
func (k *sockets) sweep(ctx context.Context, t *xtables.Commands, families []model.Family) (err error) {
	for _, f := range families {
		if slices.Contains(t.Families, f) {
			_, failed := t.DeleteScratch(ctx, f)
			err = errors.Join(err, failed)
		}
	}
	return errors.Join(err, k.deleteScratch(ctx, families))
}

// deleteScratch deletes all scratch objects but chains, which come first.
func (k *sockets) deleteScratch(ctx context.Context, families []model.Family) (err error) {
	for _, f := range families {
		for s := noSet + 1; s < numSets; s++ {
			err = errors.Join(err, ignore(k.sets.Destroy(ctx, scratchSet(s, f)), ipset.ErrNotFound))
		}
		err = errors.Join(err, ignore(wrap("routing rule", k.links.RuleDel(scratchRule(f))), unix.ENOENT, unix.EAFNOSUPPORT))
	}
	link, missing := k.links.LinkByName(scratchLink)
	if missing == nil {
		missing = k.links.LinkDel(link)
	}
	return errors.Join(err, ignore(wrap("link "+scratchLink, missing), unix.ENODEV))
}
