// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// probe tries IPv4, which every node needs.
func probe(ctx context.Context) error {
	return Probe(ctx, Options{Families: []model.Family{model.IPv4}})
}

// openBackend opens the mode where Probe has found it to work, or where an earlier
// run may have used it: it does not have the kernel load IPVS. Where IPv6 does not
// work, IPv4 is served alone, and ports of IPv6 are Gaps.
func openBackend(c *config.Config) (dataplane.Backend, error) {
	if err := checkLoaded(); err != nil {
		return nil, err
	}
	commands, _, err := xtables.Find(context.Background())
	if err != nil {
		return nil, fmt.Errorf("ipvs mode: %w", err)
	}
	o := optionsOf(c)
	o.NoRandomFully = !commands.RandomFully()
	if err := checkScheduler(o.scheduler()); err != nil {
		return nil, err
	}
	if err := checkIPv6(commands); err != nil {
		slog.Warn("IPv6 not served", "mode", Name, "err", err)
		o.Families = []model.Family{model.IPv4}
	}
	d, err := Open(o, c.IPVS.ExcludeCIDRs, commands)
	if err != nil {
		return nil, err
	}
	d.poll.Every = c.SyncPeriod
	return followAddresses(&tuned{Backend: dataplane.New(NewCompiler(o), d), driver: d, config: c.IPVS})
}

// tuned sets up the kernel for IPVS when it is about to be used: Open writes
// nothing, and one that is only cleared away needs nothing.
type tuned struct {
	dataplane.Backend
	driver  *Driver
	config  config.IPVS
	done    bool
	retryAt time.Time // after a failure
}

// tuneRetry is the pause before what is missing is tried again.
const tuneRetry = time.Second

// Sync implements dataplane.Backend.
func (t *tuned) Sync(ctx context.Context) (dataplane.Work, error) {
	if !t.done {
		if err := t.driver.tables.ns.Do(func() error { return applySysctls(t.config) }); err != nil {
			t.retryAt = time.Now().Add(tuneRetry)
			return dataplane.Work{Held: err}, err
		}
		if err := applyTimeouts(t.driver.kernel.ipvs, t.config); err != nil {
			slog.Warn("setting IPVS timeouts failed", "mode", Name, "err", err)
		}
		t.done, t.retryAt = true, time.Time{}
	}
	return t.Backend.Sync(ctx)
}

// Next implements dataplane.Backend.
func (t *tuned) Next() time.Time {
	if !t.retryAt.IsZero() {
		return t.retryAt
	}
	return t.Backend.Next()
}

// applySysctls sets the kernel parameters that IPVS needs here. Without the first
// nothing can be masqueraded; all others make a good answer better.
func applySysctls(c config.IPVS) error {
	if err := host.EnsureSysctl("net/ipv4/vs/conntrack", "1"); err != nil {
		return err
	}
	more := [][2]string{
		{"net/ipv4/vs/expire_nodest_conn", "1"},        // connections to an endpoint that is gone end at once
		{"net/ipv4/vs/expire_quiescent_template", "1"}, // clients leave an endpoint that drains
		{"net/ipv4/ip_forward", "1"},
	}
	if reuseIsDelayed() {
		more = append(more, [2]string{"net/ipv4/vs/conn_reuse_mode", "0"})
	}
	if c.StrictARP {
		more = append(more, [2]string{"net/ipv4/conf/all/arp_ignore", "1"}, [2]string{"net/ipv4/conf/all/arp_announce", "2"})
	}
	for _, s := range more {
		if err := host.EnsureSysctl(s[0], s[1]); err != nil {
			slog.Warn("setting a sysctl failed", "mode", Name, "err", err)
		}
	}
	return nil
}

// reuseIsDelayed reports whether a client that uses a port again has to wait a
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

func applyTimeouts(h *ipvs.Handle, c config.IPVS) error {
	if c.TCPTimeout == 0 && c.TCPFinTimeout == 0 && c.UDPTimeout == 0 {
		return nil
	}
	whole := func(d time.Duration) time.Duration { return d.Round(time.Second) }
	return h.SetConfig(&ipvs.Config{TimeoutTCP: whole(c.TCPTimeout), TimeoutTCPFin: whole(c.TCPFinTimeout), TimeoutUDP: whole(c.UDPTimeout)})
}

// followed is a backend for which the host has, beside the addresses that its
// Node object has, all that this machine has now: node ports answer on them, and
// IPVS needs a virtual server for each. Disturbed looks for changes.
type followed struct {
	dataplane.Backend
	addresses *host.Addresses
	host      *model.Host
	own       []netip.Addr
	stale     bool      // own may be out of date
	due       time.Time // when a change was found that is not synced; zero for none
}

// followAddresses joins a backend with the addresses of the thread's network
// namespace, and closes it when that fails.
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

// Disturbed implements dataplane.Backend. A change of addresses is no drift, but
// something to sync.
func (f *followed) Disturbed(ctx context.Context) (bool, error) {
	f.stale = f.stale || f.host != nil && f.addresses.Changed()
	if f.stale {
		own, err := sortedAddresses(f.addresses)
		if err != nil {
			return false, err // and it is tried again
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
