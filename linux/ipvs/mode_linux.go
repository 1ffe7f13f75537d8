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
)

// probe tries IPv4, which every node needs.
func probe(ctx context.Context) error {
	return Probe(ctx, Options{Families: []model.Family{model.IPv4}})
}

// openBackend opens the mode. Where IPv6 does not work, IPv4 is served alone,
// and ports of IPv6 are Gaps.
func openBackend(c *config.Config) (dataplane.Backend, error) {
	if err := haveIPVS(); err != nil {
		return nil, err
	}
	o := options(c)
	if err := haveScheduler(o.scheduler()); err != nil {
		return nil, err
	}
	if err := haveIPv6(); err != nil {
		slog.Warn("IPv6 is not served", "mode", Name, "error", err)
		o.Families = []model.Family{model.IPv4}
	}
	if err := settings(c.IPVS); err != nil {
		return nil, err
	}
	d, err := Open(o, c.IPVS.ExcludeCIDRs)
	if err != nil {
		return nil, err
	}
	if err := timeouts(d.kernel.ipvs, c.IPVS); err != nil {
		slog.Warn("IPVS keeps its time-outs", "error", err)
	}
	return follow(dataplane.New(NewCompiler(o), d))
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
