// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

func onLinux(m dataplane.Mode) dataplane.Mode {
	m.Probe, m.Open, m.OpenLeft = probe, openBackend, openLeft
	return m
}

// openBackend opens the mode if the kernel has loaded IPVS, as after Probe or an
// earlier run; it does not make the kernel load it. If IPv6 does not work, only IPv4
// is served, and IPv6 ports are Gaps.
func openBackend(ctx context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
	if err := checkLoaded(); err != nil {
		return nil, err
	}
	commands, _, err := xtables.Find(ctx)
	if errors.Is(err, dataplane.ErrAbsent) {
		return nil, fmt.Errorf("ipvs mode: %v", err) // there may be virtual servers
	} else if err != nil {
		return nil, fmt.Errorf("ipvs mode: %w", err)
	}
	o := optionsOf(c)
	o.NoRandomFully = !commands.RandomFully()
	if o.Schedulers, err = findSchedulers(o.scheduler()); err != nil {
		return nil, fmt.Errorf("ipvs mode: %w", err)
	}
	if err := checkIPv6(ctx, commands); err != nil {
		log.Warn("IPv6 not served", "mode", Name, "err", err)
		o.Families = []model.Family{model.IPv4}
	}
	return openWith(o, c, commands, log)
}

// openLeft is Mode.OpenLeft. It needs no scheduler, and no iptables: if chains are left then,
// deleting the sets that they refer to fails.
func openLeft(ctx context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
	if err := checkLoaded(); err != nil {
		return nil, err
	}
	commands, _, err := xtables.Find(ctx)
	if errors.Is(err, dataplane.ErrAbsent) {
		commands = &xtables.Commands{}
	} else if err != nil {
		return nil, fmt.Errorf("ipvs mode: %w", err)
	}
	o := optionsOf(c)
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		o.Families = []model.Family{model.IPv4}
	}
	return openWith(o, c, commands, log)
}

func openWith(o Options, c *config.Config, commands *xtables.Commands, log *slog.Logger) (dataplane.Backend, error) {
	d, err := Open(o, c.IPVS.ExcludeCIDRs, commands, log)
	if err != nil {
		return nil, err
	}
	d.poll.Every = c.SyncPeriod
	return followAddresses(&tuned{Backend: dataplane.New(NewCompiler(o), d), driver: d, config: c.IPVS})
}

// tuned sets sysctls and timeouts before the first Sync: Open writes nothing, and
// cleanup needs none of them.
type tuned struct {
	dataplane.Backend
	driver  *Driver
	config  config.IPVS
	done    bool
	retryAt time.Time // after a failure
}

// tuneRetry is the pause before another attempt.
const tuneRetry = time.Second

var _ dataplane.Backend = (*tuned)(nil)

func (t *tuned) Sync(ctx context.Context) (dataplane.Work, error) {
	if !t.done {
		if err := t.driver.tables.Namespace.Do(func() error { return applySysctls(t.config, t.driver.log) }); err != nil {
			t.retryAt = time.Now().Add(tuneRetry)
			return dataplane.Work{Held: err}, err
		}
		if err := t.driver.kernel.servers.SetTimeouts(t.config.TCPTimeout, t.config.TCPFinTimeout, t.config.UDPTimeout); err != nil {
			t.driver.log.Warn("setting IPVS timeouts failed", "mode", Name, "err", err)
		}
		t.done, t.retryAt = true, time.Time{}
	}
	return t.Backend.Sync(ctx)
}

func (t *tuned) Remove(ctx context.Context) error {
	return errors.Join(t.Backend.Remove(ctx), t.driver.sweep(ctx))
}

func (t *tuned) Next() time.Time {
	if !t.retryAt.IsZero() {
		return t.retryAt
	}
	return t.Backend.Next()
}

// Prepare sets the sysctls of IPVS, which a container with only the mode's capabilities cannot
// set. Without IPVS there are none.
func Prepare(c *config.Config, log *slog.Logger) error {
	if err := virtualserver.Load(); err != nil {
		return nil // the probe states the reason
	}
	return applySysctls(c.IPVS, log)
}

// tracking is the sysctl that makes conntrack track connections of IPVS, which masquerading needs.
func tracking() host.Setting {
	return host.Setting{Path: "proc/sys/net/ipv4/vs/conntrack", Want: 1}
}

// applySysctls sets the kernel parameters that IPVS needs. The first is required; a failure
// of the others is only logged.
func applySysctls(c config.IPVS, log *slog.Logger) error {
	if err := tracking().Apply("/", log); err != nil {
		return err
	}
	more := []host.Setting{
		{Path: "proc/sys/net/ipv4/vs/expire_nodest_conn", Want: 1},        // connections to a removed endpoint end at once
		{Path: "proc/sys/net/ipv4/vs/expire_quiescent_template", Want: 1}, // persistent clients leave a draining endpoint
		{Path: "proc/sys/net/ipv4/ip_forward", Want: 1},
	}
	if reuseIsDelayed() {
		more = append(more, host.Setting{Path: "proc/sys/net/ipv4/vs/conn_reuse_mode", Want: 0})
	}
	if c.StrictARP {
		more = append(more, host.Setting{Path: "proc/sys/net/ipv4/conf/all/arp_ignore", Want: 1}, host.Setting{Path: "proc/sys/net/ipv4/conf/all/arp_announce", Want: 2})
	}
	for _, s := range more {
		if err := s.Apply("/", log); err != nil {
			log.Warn("setting a sysctl failed", "mode", Name, "err", err)
		}
	}
	return nil
}

// reuseIsDelayed reports whether a client that reuses a source port has to wait a
// second: Linux 4.1 to 5.8 with conn_reuse_mode 1 (kubernetes/kubernetes#81775).
func reuseIsDelayed() bool {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major == 4 && minor >= 1 || major == 5 && minor < 9
}

// followed adds the present addresses of this machine to those of the Node object:
// node ports answer on them, and IPVS needs a virtual server for each. Disturbed
// looks for changes.
type followed struct {
	dataplane.Backend
	addresses *host.Addresses
	host      *model.Host
	own       []netip.Addr
	stale     bool      // own may be out of date
	due       time.Time // when a change was found that is not synced; zero for none
}

// followAddresses wraps a backend to follow the addresses of the thread's network
// namespace, and closes it on failure.
func followAddresses(b dataplane.Backend) (_ dataplane.Backend, err error) {
	f := &followed{Backend: b}
	if f.addresses, err = openAddresses(); err == nil {
		f.own, err = sortedAddresses(f.addresses)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

var _ dataplane.Backend = (*followed)(nil)

func (f *followed) Close() (err error) {
	if f.addresses != nil {
		err = f.addresses.Close()
	}
	return errors.Join(err, f.Backend.Close())
}

func (f *followed) SetHost(h *model.Host) {
	f.host = h
	all := *h
	all.IPs = slices.Clone(h.IPs)
	for _, a := range f.own {
		if !slices.Contains(all.IPs, a) {
			all.IPs = append(all.IPs, a)
		}
	}
	f.Backend.SetHost(&all)
}

// Disturbed: a change of addresses is not drift, but causes a sync.
func (f *followed) Disturbed(ctx context.Context) (bool, error) {
	f.stale = f.stale || f.host != nil && f.addresses.Changed()
	if f.stale {
		own, err := sortedAddresses(f.addresses)
		if err != nil {
			return false, err // the next call retries
		}
		f.stale = false
		if !slices.Equal(own, f.own) {
			f.own, f.due = own, time.Now()
			f.SetHost(f.host)
		}
	}
	return f.Backend.Disturbed(ctx)
}

func (f *followed) Next() time.Time {
	if !f.due.IsZero() {
		return f.due
	}
	return f.Backend.Next()
}

func (f *followed) Sync(ctx context.Context) (dataplane.Work, error) {
	f.due = time.Time{}
	return f.Backend.Sync(ctx)
}

// checkLoaded returns an error if the kernel has not loaded IPVS. It makes the kernel
// load IPVS only if an owned kube-ipvs0 shows that this mode ran here.
func checkLoaded() error {
	if virtualserver.Loaded() {
		return nil
	}
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer links.Close()
	link, err := links.LinkByName(Link)
	switch {
	case err == nil && link.Attrs().Alias == alias:
		if err := virtualserver.Load(); err != nil {
			return fmt.Errorf("link %s is left, but IPVS cannot be loaded: %v", Link, err) // not ErrAbsent
		}
		return nil
	case ignore(err, unix.ENODEV) != nil:
		return wrap("link "+Link, err)
	}
	return fmt.Errorf("IPVS is not loaded: it %w", dataplane.ErrAbsent)
}

// findSchedulers checks the configured scheduler, and returns those that Services can
// choose.
func findSchedulers(usual string) (have []string, err error) {
	c, err := virtualserver.Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.CheckScheduler(flagOwned, usual); err != nil {
		return nil, err
	}
	return c.Available(flagOwned, "rr", "wrr", "lc", "wlc", "sh", "mh")
}

// checkIPv6 returns an error if IPv6 or its iptables are missing in the network
// namespace of the calling thread.
func checkIPv6(ctx context.Context, commands *xtables.Commands) error {
	if err := host.CheckIPv6(); err != nil {
		return err
	}
	if !slices.Contains(commands.Families, model.IPv6) {
		return errors.New("ip6tables is missing or does not work")
	}
	_, err := commands.Save(ctx, model.IPv6, xtables.Mangle)
	return err
}

// The objects of a probe besides xtables.ScratchChain: a link, and in each family a routing
// rule and sets. They affect no packet.
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
	err = k.sweep(ctx, commands.Tools, commands.Families, o.families())
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

// tryAll creates the scratch objects.
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

// probeHost has pods, which some rules match.
func probeHost() *model.Host {
	return &model.Host{Pods: model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}}}
}

// sweep deletes scratch objects of a killed probe, except its virtual server, which is marked
// as owned. Chains are deleted for the families in tabled. The caller has host.LockProbe.
func (k *sockets) sweep(ctx context.Context, t xtables.Tools, tabled, families []model.Family) (err error) {
	for _, f := range families {
		if slices.Contains(tabled, f) {
			_, failed := t.DeleteScratch(ctx, f)
			err = errors.Join(err, failed)
		}
	}
	return errors.Join(err, k.deleteScratch(ctx, families))
}

// deleteScratch deletes all scratch objects except chains, which must be deleted before.
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
