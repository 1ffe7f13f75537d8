// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

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

// openLeft is Mode.OpenLeft. It needs no scheduler, and no iptables: chains that refer to
// our sets, which it would have to delete, hold these in use then, and that is the error.
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

// Sync implements dataplane.Backend.
func (t *tuned) Sync(ctx context.Context) (dataplane.Work, error) {
	if !t.done {
		if err := t.driver.tables.ns.Do(func() error { return applySysctls(t.config, t.driver.log) }); err != nil {
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

// Remove implements dataplane.Backend.
func (t *tuned) Remove(ctx context.Context) error {
	return errors.Join(t.Backend.Remove(ctx), t.driver.sweep(ctx))
}

// Next implements dataplane.Backend.
func (t *tuned) Next() time.Time {
	if !t.retryAt.IsZero() {
		return t.retryAt
	}
	return t.Backend.Next()
}

// Prepare sets kernel parameters that a container which only has the mode's capabilities
// cannot set. Without IPVS there are none.
func Prepare(c *config.Config, log *slog.Logger) error {
	if err := virtualserver.Load(); err != nil {
		return nil // the probe states the reason
	}
	return applySysctls(c.IPVS, log)
}

// tracking has conntrack see the connections of IPVS, which masquerading needs.
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

// Unwrap implements dataplane.Wrapper.
func (f *followed) Unwrap() dataplane.Backend { return f.Backend }

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

// Close implements dataplane.Backend.
func (f *followed) Close() (err error) {
	if f.addresses != nil {
		err = f.addresses.Close()
	}
	return errors.Join(err, f.Backend.Close())
}

// SetHost implements dataplane.Backend.
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

// Disturbed implements dataplane.Backend. A change of addresses is not drift; it
// causes a sync.
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

// Next implements dataplane.Backend.
func (f *followed) Next() time.Time {
	if !f.due.IsZero() {
		return f.due
	}
	return f.Backend.Next()
}

// Sync implements dataplane.Backend.
func (f *followed) Sync(ctx context.Context) (dataplane.Work, error) {
	f.due = time.Time{}
	return f.Backend.Sync(ctx)
}

// checkLoaded returns an error if the kernel has not loaded IPVS. It makes the kernel
// load it only if our kube-ipvs0 shows that it was in use here.
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
			return fmt.Errorf("link %s exists, but: %v", Link, err) // not ErrAbsent
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
		return errors.New("ip6tables cannot be used here")
	}
	_, err := commands.Save(ctx, model.IPv6, xtables.Mangle)
	return err
}
