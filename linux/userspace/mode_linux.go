// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

func onLinux(m dataplane.Mode, handover func() relay.Handover) dataplane.Mode {
	m.Probe, m.Open, m.Remove = probe, opener(handover), remove
	return m
}

// tableKind is one of the two kinds of table for rules.
type tableKind struct {
	name string // for logs
	// open opens the table and writes nothing.
	open func(context.Context) (table, error)
	// try finds out whether the rules of a family can be written.
	try func(context.Context, table, model.Family) error
}

// tableKinds are both, the preferred one first.
func tableKinds() [2]tableKind {
	return [...]tableKind{{"iptables", openNAT, tryNAT}, {"nftables", openNFT, tryNFT}}
}

// choose opens the first kind of table that works for IPv4, which every node needs,
// and returns its index. The error states why each kind failed.
func choose(ctx context.Context, all [2]tableKind) (t table, at int, err error) {
	best, err := dataplane.FirstWorking(ctx, []int{0, 1}, func(ctx context.Context, i int) error {
		opened, err := all[i].open(ctx)
		if err == nil {
			if err = all[i].try(ctx, opened, model.IPv4); err == nil {
				t = opened
				return nil
			}
			err = errors.Join(err, opened.Close())
		}
		return host.Undecided(err) // the rules of an earlier run may be in this kind
	})
	if best == nil {
		return nil, 0, err
	}
	return t, *best, nil
}

func probe(ctx context.Context) error {
	t, _, err := choose(ctx, tableKinds())
	if err != nil {
		return err
	}
	return t.Close()
}

// opener returns what opens the mode.
func opener(handover func() relay.Handover) func(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
	return func(ctx context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
		return openBackend(ctx, c, relay.Options{Mark: markOf(c), TCP: relay.TimeoutsOf(c), Handover: handover(), Log: log})
	}
}

// openBackend opens the mode. Without a table for IPv6 only IPv4 is served, and IPv6
// ports are Gaps.
func openBackend(ctx context.Context, c *config.Config, o relay.Options) (dataplane.Backend, error) {
	t, at, err := choose(ctx, tableKinds())
	if err != nil {
		return nil, err
	}
	families := []model.Family{model.IPv4}
	if slices.Contains(t.Served(), model.IPv6) && ipv6() {
		if err := tableKinds()[at].try(ctx, t, model.IPv6); err != nil {
			o.Log.Warn("IPv6 not served", "mode", relay.Mode, "err", err)
		} else {
			families = append(families, model.IPv6)
		}
	}
	d := open(t, o)
	return &backend{Backend: dataplane.New(NewCompiler(markOf(c), families...), d), driver: d, other: tableKinds()[1-at]}, nil
}

// backend removes leftover rules of an earlier run from the other kind of table after
// its first complete sync.
type backend struct {
	dataplane.Backend
	driver  *Driver
	other   tableKind
	cleaned bool
	cleanAt time.Time // of the next attempt to remove them
}

var _ relay.Backend = (*backend)(nil)

func (b *backend) Relays() relay.Stats { return b.driver.relays.server.Stats() }

func (b *backend) Connections(_ context.Context, endpoints bool, found func(dataplane.Connections)) (counted bool, err error) {
	if endpoints {
		return false, nil
	}
	b.driver.relays.server.Taken(func(id model.PortID, n uint64) {
		found(dataplane.Connections{Proto: id.Proto, Port: id, New: n})
	})
	return true, nil
}

func (b *backend) Watch() monitor.Source { return b.driver.relays.server.Watch() }

func (b *backend) Attempts() *relay.Attempts { return b.driver.relays.server.Attempts() }

func (b *backend) Sync(ctx context.Context) (dataplane.Work, error) {
	w, err := b.Backend.Sync(ctx)
	if b.cleaned || time.Now().Before(b.cleanAt) {
		return w, err
	}
	if err != nil || w.Failed > 0 { // the other kind may serve what failed here
		b.cleanAt = time.Time{} // after the sync that succeeds
		return w, err
	}
	b.driver.release()
	failed := b.other.clear(ctx, true)
	b.cleaned = failed == nil || errors.Is(failed, dataplane.ErrAbsent) || errors.Is(failed, nft.ErrForeign)
	if !b.cleaned {
		b.cleanAt = time.Now().Add(cleanRetry)
		b.driver.log.Warn("removing leftover rules failed", "mode", relay.Mode, "from", b.other.name, "err", failed, "retry", cleanRetry)
	}
	return w, err
}

func (b *backend) Next() time.Time {
	if b.cleaned {
		return b.Backend.Next()
	}
	return sleep.Earlier(b.Backend.Next(), b.cleanAt)
}

// cleanRetry is the least time between attempts to remove leftover rules.
const cleanRetry = time.Minute

// anyMark is for rules that no packet meets.
const anyMark = 1

// clear removes our rules from a kind of table and, unless it is shared, the relay
// address.
func (k tableKind) clear(ctx context.Context, sharedAddr bool) error {
	t, err := k.open(ctx)
	if err != nil {
		return err
	}
	d := open(t, relay.Options{})
	d.sharedAddr = sharedAddr
	b := dataplane.New(NewCompiler(anyMark, t.Served()...), d)
	defer d.release()
	return errors.Join(b.Remove(ctx), b.Close())
}

// remove is Mode.Remove, for both kinds of table.
func remove(ctx context.Context, _ *config.Config) error {
	var absent, failed []error
	for _, k := range tableKinds() {
		if err := k.clear(ctx, false); errors.Is(err, dataplane.ErrAbsent) {
			absent = append(absent, err)
		} else {
			failed = append(failed, err)
		}
	}
	if len(failed) == 0 {
		return errors.Join(absent...)
	}
	return errors.Join(failed...)
}

// tryNAT writes one rule of each kind to a chain that no packet meets, and reads them back.
func tryNAT(ctx context.Context, t table, f model.Family) error {
	nat := t.(natTable)
	return nat.Namespace.Do(func() error {
		lock, err := host.LockProbe(ctx)
		if err != nil {
			return err
		}
		defer lock.Close()
		return nat.commands.Try(ctx, f, func(f model.Family, _ xtables.Table, _ bool) []xtables.Rule {
			_, rules := probeRules(f)
			return rules
		}, xtables.NAT)
	})
}

// tryNFT writes the fixed chains, an entry and one rule of each match to a scratch table that
// no packet meets.
func tryNFT(ctx context.Context, _ table, f model.Family) error {
	objects := map[nft.Key]nft.Value{}
	put := func(k nft.Key, v nft.Value) { objects[k] = v }
	NewCompiler(anyMark, f).Base(&model.Host{}, func(k Key, v Value) { nftObjects(k, slices.Collect(v.Rules.All()), put) })
	k, rules := probeRules(f)
	nftObjects(k, rules, put)
	nftObjects(Key{Kind: KindChain, Family: f, Chain: "probe"}, rules[1:], put)
	return nft.Try(ctx, nftTable, objects, f)
}

// probeRules returns the key of an entry, and rules: its own and one of each match.
func probeRules(f model.Family) (Key, []xtables.Rule) {
	at := netip.AddrPortFrom(relayAddr(f), 80)
	port := model.PortID{Service: model.ServiceName{Namespace: "tandem", Name: "probe"}, Proto: model.TCP, Family: f}
	some := xtables.Within(netip.PrefixFrom(at.Addr(), 24).Masked())
	k := Key{Kind: kindEntry, Family: f, Chain: chainContainer, Proto: model.TCP, At: at}
	return k, []xtables.Rule{
		entryRule(k, Target{Relay: relayOf(port, model.Cluster)}, 80),
		{Dst: some, Matches: []xtables.Match{xtables.DstLocal{}}, Target: xtables.Return},
		{Src: some, In: xtables.Interface{Name: "probe+"}, Target: xtables.Return},
		skipRelayTraffic(anyMark),
	}
}

// ipv6 reports whether lo may have IPv6 addresses.
func ipv6() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}
