package ipvs

import (
	"context"
	"fmt"
	"log/slog"
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
	if err := loaded(); err != nil {
		return nil, err
	}
	commands, _, err := xtables.Find(context.Background())
	if err != nil {
		return nil, fmt.Errorf("ipvs mode: %w", err)
	}
	o := options(c)
	o.NoRandomFully = !commands.RandomFully()
	if err := haveScheduler(o.scheduler()); err != nil {
		return nil, err
	}
	if err := haveIPv6(commands); err != nil {
		slog.Warn("IPv6 is not served", "mode", Name, "error", err)
		o.Families = []model.Family{model.IPv4}
	}
	d, err := Open(o, c.IPVS.ExcludeCIDRs, commands)
	if err != nil {
		return nil, err
	}
	d.again.every = c.SyncPeriod
	return follow(&tuned{Backend: dataplane.New(NewCompiler(o), d), driver: d, config: c.IPVS})
}

// tuned sets up the kernel for IPVS when it is about to be used: Open writes
// nothing, and one that is only cleared away needs nothing.
type tuned struct {
	dataplane.Backend
	driver *Driver
	config config.IPVS
	done   bool
	again  time.Time // after a failure
}

// tuneAgain is the pause before what is missing is tried again.
const tuneAgain = time.Second

// Sync implements dataplane.Backend.
func (t *tuned) Sync(ctx context.Context) (dataplane.Work, error) {
	if !t.done {
		if err := t.driver.tables.ns.Do(func() error { return settings(t.config) }); err != nil {
			t.again = time.Now().Add(tuneAgain)
			return dataplane.Work{Held: err}, err
		}
		if err := timeouts(t.driver.kernel.ipvs, t.config); err != nil {
			slog.Warn("IPVS keeps its time-outs", "mode", Name, "error", err)
		}
		t.done, t.again = true, time.Time{}
	}
	return t.Backend.Sync(ctx)
}

// Next implements dataplane.Backend.
func (t *tuned) Next() time.Time {
	if !t.again.IsZero() {
		return t.again
	}
	return t.Backend.Next()
}

// settings sets the kernel parameters that IPVS needs here. Without the first
// nothing can be masqueraded; all others make a good answer better.
func settings(c config.IPVS) error {
	if err := host.EnsureSysctl("net/ipv4/vs/conntrack", "1"); err != nil {
		return err
	}
	more := [][2]string{
		{"net/ipv4/vs/expire_nodest_conn", "1"},        // connections to an endpoint that is gone end at once
		{"net/ipv4/vs/expire_quiescent_template", "1"}, // clients leave an endpoint that drains
		{"net/ipv4/ip_forward", "1"},
	}
	if reuseDelays() {
		more = append(more, [2]string{"net/ipv4/vs/conn_reuse_mode", "0"})
	}
	if c.StrictARP {
		more = append(more, [2]string{"net/ipv4/conf/all/arp_ignore", "1"}, [2]string{"net/ipv4/conf/all/arp_announce", "2"})
	}
	for _, s := range more {
		if err := host.EnsureSysctl(s[0], s[1]); err != nil {
			slog.Warn("a kernel parameter is not as it should be", "mode", Name, "error", err)
		}
	}
	return nil
}

// reuseDelays reports whether a client that uses a port again has to wait a
// second: Linux 4.1 to 5.8 with conn_reuse_mode 1 (kubernetes/kubernetes#81775).
func reuseDelays() bool {
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

func timeouts(h *ipvs.Handle, c config.IPVS) error {
	if c.TCPTimeout == 0 && c.TCPFinTimeout == 0 && c.UDPTimeout == 0 {
		return nil
	}
	whole := func(d time.Duration) time.Duration { return d.Round(time.Second) }
	return h.SetConfig(&ipvs.Config{TimeoutTCP: whole(c.TCPTimeout), TimeoutTCPFin: whole(c.TCPFinTimeout), TimeoutUDP: whole(c.UDPTimeout)})
}
