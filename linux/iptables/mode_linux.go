// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

func onLinux(m dataplane.Mode) dataplane.Mode {
	m.Probe, m.Open, m.Remove, m.KubeProxy = probe, openBackend, remove, kubeProxy
	return m
}

// openBackend opens the variant that the host uses, and writes nothing. If IPv6 does
// not work, only IPv4 is served, and IPv6 ports are Gaps.
func openBackend(ctx context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	best, installed, err := xtables.Find(ctx)
	if err != nil {
		return nil, err
	}
	if best.IPv6Error != nil {
		log.Warn("IPv6 not served", "mode", Name, "err", best.IPv6Error)
	}
	o := optionsOf(c)
	o.Families, o.NoRandomFully = best.Families, !best.RandomFully()
	d, err := open(best.Tools, best.Families, c.SyncPeriod)
	if err != nil {
		return nil, err
	}
	d.liberal = host.RelyOnLiberal(o.Liberal)
	o.Liberal = d.liberal != nil
	packets := &packetCounter{families: best.Families, read: d.packets, log: log}
	return &backend{dataplane.New(NewCompiler(o), d), d, packets, installed}, nil
}

// probe finds out whether this host supports the mode.
func probe(ctx context.Context) error { return xtables.Probe(ctx, probeRules) }

// backend adds counters, and removes the rules of both variants.
type backend struct {
	dataplane.Backend
	driver    *Driver
	packets   *packetCounter
	installed []xtables.Tools
}

func (b *backend) Sync(ctx context.Context) (dataplane.Work, error) {
	w, err := b.Backend.Sync(ctx)
	w.Rules = b.driver.rules()
	return w, err
}

func (b *backend) Packets() dataplane.Packets { return b.packets.packets() }

// Remove removes the rules of both variants.
func (b *backend) Remove(ctx context.Context) error {
	return removeOwned(ctx, b.installed, b.driver.tables.Namespace)
}

// remove is Mode.Remove. It also deletes the chains that killed probes of this mode and of
// userspace have left. It does not open a backend, which would create tables of the legacy variant.
func remove(ctx context.Context, _ *config.Config) error {
	return withInstalled(ctx, func(installed []xtables.Tools, here *host.Namespace) error {
		return errors.Join(removeOwned(ctx, installed, here), xtables.RemoveScratch(ctx, installed))
	})
}

// withInstalled calls f with the installed variants, and the network namespace of the
// calling thread.
func withInstalled(ctx context.Context, f func([]xtables.Tools, *host.Namespace) error) error {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	installed, err := xtables.FindTools(ctx)
	if err != nil {
		return err
	}
	here, err := host.OpenNamespace()
	if err != nil {
		return err
	}
	return errors.Join(f(installed, here), here.Close())
}

// removeOwned deletes Tandem's rules in all variants. Most chains have
// kube-proxy's names: without a chain that only Tandem creates, or if kube-proxy
// has rewritten the chains that lead to it, they are kube-proxy's, and stay. Tables that are
// empty then are deleted.
func removeOwned(ctx context.Context, installed []xtables.Tools, ns *host.Namespace) error {
	return eachInUse(ctx, installed, ns, func(d *Driver, have map[Key]Value) error {
		if isTandem(have) {
			return removeAll(ctx, d)
		}
		return removeUnused(ctx, d)
	})
}

func removeAll(ctx context.Context, d *Driver) error {
	return dataplane.New(NewCompiler(Options{Families: d.tables.Families}), d).Remove(ctx)
}

// removeUnused deletes the chains that only Tandem creates, to which no rule leads:
// kube-proxy rewrites the chains that it knows when it starts.
func removeUnused(ctx context.Context, d *Driver) error {
	var ops []op
	err := d.Observe(ctx, func(k Key, v Value) {
		if isTandemChain(k.Chain) {
			ops = append(ops, op{Verb: ledger.Delete, Key: k, Old: v})
		}
	})
	if err != nil {
		return err
	}
	return errors.Join(d.Commit(ctx, ops)...)
}

// eachInUse calls f for each variant and family that has chains with names that Tandem uses. It
// creates no tables: of the legacy variant only existing ones are read. The nft variant is
// skipped if it cannot be read, since the kernel may lack nf_tables, but it is an error if no
// variant can be read, or if iptables cannot list an nft table.
func eachInUse(ctx context.Context, installed []xtables.Tools, ns *host.Namespace, f func(d *Driver, have map[Key]Value) error) error {
	var unread, errs []error
	read := 0
	for _, t := range installed {
		for _, family := range t.Installed() {
			d := &Driver{tables: xtables.OpenIn(ns, t, []model.Family{family}, tables()...), shared: sharedChains{}}
			d.tables.Existing = true
			have, _, err := d.read(ctx)
			switch {
			case err != nil && (t.Variant == xtables.Legacy || errors.Is(err, xtables.ErrIncompatible)):
				errs = append(errs, err)
			case err != nil:
				unread = append(unread, err)
				continue
			case len(have) > 0:
				errs = append(errs, f(d, have))
			}
			read++
		}
	}
	if read == 0 {
		return errors.Join(unread...)
	}
	return errors.Join(errs...)
}

// isTandem reports whether Tandem has programmed objects of one family, and kube-proxy
// not since: its KUBE-SERVICES and KUBE-NODEPORTS lead to chains of ports, Tandem's to
// chains of a tree.
func isTandem(objects map[Key]Value) bool {
	tandem, toTree, toPort := false, false, false
	for k, v := range objects {
		if isTandemChain(k.Chain) {
			tandem = true
			continue
		}
		for r := range v.All() {
			to := r.Chain()
			toTree = toTree || isTandemChain(to)
			toPort = toPort || k.Table == xtables.NAT && classOf(k.Chain) == shared && classOf(to) == whole
		}
	}
	return tandem && (toTree || !toPort)
}

// isTandemChain reports whether kube-proxy never creates a chain.
func isTandemChain(name string) bool {
	return name == chainUnserved || slices.ContainsFunc(trees[:], func(t *tree) bool { return strings.HasPrefix(name, t.prefix) })
}

// kubeProxy finds chains with names that kube-proxy and Tandem share, if they are not
// Tandem's. Running in this mode adopts them.
func kubeProxy(ctx context.Context) (left dataplane.Leftovers, err error) {
	left.Remove = func(ctx context.Context) error { return eachKubeProxy(ctx, removeAll) }
	err = eachKubeProxy(ctx, func(ctx context.Context, d *Driver) error {
		have, _, err := d.read(ctx)
		left.Found = append(left.Found, fmt.Sprintf("%d chains and rules of iptables (%s, %s)", len(have), d.tables.Tools.Variant, d.tables.Families[0]))
		return err
	})
	return left, err
}

// eachKubeProxy calls f for each variant with leftovers of kube-proxy, in the network
// namespace of the calling thread.
func eachKubeProxy(ctx context.Context, f func(context.Context, *Driver) error) error {
	return withInstalled(ctx, func(installed []xtables.Tools, here *host.Namespace) error {
		return eachInUse(ctx, installed, here, func(d *Driver, have map[Key]Value) error {
			if isTandem(have) {
				return nil
			}
			return f(ctx, d)
		})
	})
}
