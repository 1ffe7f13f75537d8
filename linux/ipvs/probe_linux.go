// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Probe finds out whether this machine can do what we need, by doing it in a
// network namespace of its own, which goes away with it. The error says what is
// missing and what to do about it.
func Probe(ctx context.Context, o Options) error {
	commands, _, err := xtables.Find(ctx)
	if err != nil {
		return fmt.Errorf("ipvs mode: %w", err)
	}
	o.NoRandomFully = !commands.RandomFully()
	if err := checkIPVS(); err != nil {
		return err
	}
	err = inNewNamespace(func() error { return tryAll(ctx, o, commands) })
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("ipvs mode: %w; it needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN", err)
	}
	return err
}

// checkIPVS asks for IPVS. The question makes the kernel load the module, on the
// host and by itself, where it is installed (MODULE_ALIAS_GENL_FAMILY in
// net/netfilter/ipvs/ip_vs_ctl.c). Nothing else of IPVS is used before: its
// library would look for a modprobe program and log what it thinks of the result.
func checkIPVS() error {
	h, err := netlink.NewHandle(unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	defer h.Close()
	_, err = h.GenlFamilyGet("IPVS")
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("this kernel has no IPVS; load its modules on the host with \"modprobe -a ip_vs ip_vs_rr ip_vs_sh\", or choose another --proxy-mode: IPVS %w", dataplane.ErrAbsent)
	}
	return wrap("ask for IPVS", err)
}

// checkLoaded tells whether the kernel has IPVS, without making it load the module;
// unless kube-ipvs0 says that it was in use here.
func checkLoaded() error {
	if _, err := os.Stat("/proc/thread-self/net/ip_vs"); err == nil {
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
		if err := checkIPVS(); err != nil {
			return fmt.Errorf("link %s exists, but: %v", Link, err) // not ErrAbsent
		}
		return nil
	case ignore(err, unix.ENODEV) != nil:
		return wrap("link "+Link, err)
	}
	return fmt.Errorf("the kernel has not loaded IPVS: it %w", dataplane.ErrAbsent)
}

// inNewNamespace runs f on a thread in a new network namespace. The thread ends with
// its goroutine.
func inNewNamespace(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("network namespace for probing: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// tryAll programs the skeleton and a Service, and reads them back.
func tryAll(ctx context.Context, o Options, commands *xtables.Commands) error {
	d, err := Open(o, nil, commands)
	if err != nil {
		return err
	}
	defer d.Close()
	lo, err := d.kernel.links.LinkByName("lo")
	if err := errors.Join(err, d.kernel.links.LinkSetUp(lo)); err != nil {
		return err
	}
	objects, _ := dataplane.Compile(NewCompiler(o), probeHost(), probePorts(o))
	keys := slices.Collect(maps.Keys(objects))
	c := NewCompiler(o)
	slices.SortFunc(keys, func(a, b Key) int { return c.Rank(a) - c.Rank(b) })
	ops := make([]ledger.Op[Key, Value], len(keys))
	for i, k := range keys {
		ops[i] = ledger.Op[Key, Value]{Key: k, New: objects[k]}
	}
	for i, err := range d.Commit(ctx, ops) {
		if err != nil {
			return fmt.Errorf("ipvs mode does not work here: %s: %w%s", ops[i].Key, err, moduleHint(ops[i].Key))
		}
	}
	have, err := d.observe(ctx)
	if err != nil {
		return err
	}
	for k, v := range objects {
		if got, ok := have[k]; !ok || got != v {
			return fmt.Errorf("ipvs mode: %s read back differs from what was written", k)
		}
	}
	return nil
}

// moduleHint names the modules that an object needs.
func moduleHint(k Key) string {
	modules := map[Kind]string{
		KindLink: "dummy", KindSet: "ip_set ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_hash_ip ip_set_hash_net ip_set_bitmap_port",
		KindChain: "iptable_mangle iptable_nat iptable_filter xt_set xt_mark xt_comment xt_conntrack xt_addrtype xt_MASQUERADE",
	}[k.Kind]
	if modules == "" {
		return ""
	}
	return "; the kernel modules are " + modules
}

func probeHost() *model.Host {
	return &model.Host{
		IPs:       []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}},
		Pods:      model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}},
	}
}

// probePorts are ports that need an object of every kind.
func probePorts(o Options) (ports []*model.Port) {
	for _, f := range o.families() {
		vip, ip := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("198.51.100.2")
		if f == model.IPv6 {
			vip, ip = netip.MustParseAddr("2001:db8:2::1"), netip.MustParseAddr("2001:db8:1::2")
		}
		all := &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.AddrPortFrom(ip, 80), Local: true}, {Addr: netip.AddrPortFrom(ip.Next(), 80)}}}
		local := &model.Pool{Endpoints: all.Endpoints[:1]}
		on := [model.Origins]model.Action{{Pool: all}, {Pool: all, SNAT: true}, {Pool: local}}
		ports = append(ports, &model.Port{
			ID: model.PortID{Proto: model.TCP, Family: f}, SessionAffinity: 1,
			Frontends: []model.Frontend{
				{Kind: model.KindClusterIP, At: netip.AddrPortFrom(vip, 80), On: on},
				{Kind: model.KindNodePort, At: netip.AddrPortFrom(f.Unspecified(), 30080), On: on},
			},
		})
	}
	return ports
}

// checkIPv6 asks whether IPv6 and its iptables are there, in the network namespace
// of the calling thread.
func checkIPv6(commands *xtables.Commands) error {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return err
	}
	if !slices.Contains(commands.Families, model.IPv6) {
		return errors.New("ip6tables cannot be used here")
	}
	_, err := commands.Save(context.Background(), model.IPv6, xtables.Mangle)
	return err
}

// checkScheduler tries a scheduler in a place of its own. The error lists what
// the kernel has instead.
func checkScheduler(name string) error {
	return inNewNamespace(func() error {
		h, err := ipvs.New("")
		if err != nil {
			return err
		}
		defer h.Close()
		if tryScheduler(h, name) == nil {
			return nil
		}
		var have []string
		for _, s := range strings.Fields("rr wrr lc wlc fo ovf lblc lblcr dh sh mh sed nq twos") {
			if tryScheduler(h, s) == nil {
				have = append(have, s)
			}
		}
		return fmt.Errorf("the kernel has no IPVS scheduler %q (module ip_vs_%s); it has %s", name, name, strings.Join(have, ", "))
	})
}

func tryScheduler(h *ipvs.Handle, name string) error {
	s := &ipvs.Service{
		AddressFamily: unix.AF_INET, Netmask: ^uint32(0), Protocol: unix.IPPROTO_TCP,
		Address: net.IPv4(198, 51, 100, 1), Port: 20000, SchedName: name,
	}
	if err := h.NewService(s); err != nil {
		return err
	}
	return h.DelService(s)
}
