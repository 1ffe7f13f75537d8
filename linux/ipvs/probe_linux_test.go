// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// The probe tries every kind of rule of each chain, with sets of its own.
func TestScratchRules(t *testing.T) {
	c := NewCompiler(Options{})
	for _, f := range model.Families() {
		for _, table := range ownedTables {
			text := xtables.List(c.scratchRules(f, table, true)...).String()
			if text == "" || strings.Contains(text, "KUBE-") {
				t.Errorf("%s %s:\n%s", f, table, text)
			}
			for id, all := range c.chains(f, probeHost()) {
				for _, r := range all {
					if ChainID(id).table() == table && r.Chain() == "" && !strings.Contains(text, withScratchSets(r).String()+"\n") {
						t.Errorf("%s %s is not tried: %s", f, ChainID(id), r)
					}
				}
			}
		}
	}
}

// objects lists everything in the network namespace of the calling thread that a probe
// could leave.
func objects(t *testing.T, s *site) string {
	t.Helper()
	var all strings.Builder
	for _, command := range [][]string{{"ipvsadm", "-Sn"}, {"ipset", "list"}, {"iptables-save"}, {"ip6tables-save"}, {"ip", "-o", "link"}, {"ip", "rule"}, {"ip", "-6", "rule"}} {
		for line := range strings.Lines(s.run(command[0], command[1:]...)) {
			// Not time, counts, and tables, which are the kernel's.
			if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "*") && !strings.HasPrefix(line, "COMMIT") && !strings.Contains(line, "[") {
				all.WriteString(line)
			}
		}
	}
	return all.String()
}

// The probe's trial covers both families, and leaves nothing, nor what a killed one has
// left.
func TestProbe(t *testing.T) {
	s := newSite(t) // skips where IPVS is missing
	before := objects(t, s)
	run := func() {
		t.Helper()
		if err := s.net.Do(netns.Node, func() error { return Probe(t.Context(), Options{}) }); err != nil {
			t.Error(err)
		}
		if after := objects(t, s); after != before {
			t.Errorf("left:\n%s\nwas:\n%s", after, before)
		}
	}
	run()
	leave := func() error {
		k, err := connect()
		if err != nil {
			return err
		}
		defer k.close()
		link := k.links.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: scratchLink}})
		err = errors.Join(link, k.links.RuleAdd(scratchRule(model.IPv4)), k.sets.Create(t.Context(), scratchDefinition(ClusterIPs, model.IPv4)))
		var script xtables.Script
		script.Rewrite(xtables.ScratchChain, xtables.List(NewCompiler(Options{}).scratchRules(model.IPv4, xtables.Filter, true)[0]))
		return errors.Join(err, s.commands.RestoreWait(t.Context(), model.IPv4, script.Text(xtables.Filter)))
	}
	cleanup := func() {
		t.Helper()
		must(t, s.net.Do(netns.Node, func() error {
			c := config.Default()
			b, err := openBackend(t.Context(), &c, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			return errors.Join(b.Remove(t.Context()), b.Close())
		}))
	}
	for _, clean := range []func(){run, cleanup} {
		must(t, s.net.Do(netns.Node, leave))
		if objects(t, s) == before {
			t.Fatal("nothing was left to find")
		}
		clean()
		if after := objects(t, s); after != before {
			t.Errorf("left:\n%s\nwas:\n%s", after, before)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSchedulersOfTheKernel(t *testing.T) {
	s := newSite(t)
	check := func(name string) error {
		return s.net.Do(netns.Node, func() error {
			_, err := findSchedulers(name)
			return err
		})
	}
	if err := check("wlc"); err != nil {
		t.Error(err)
	}
	err := check("fastest")
	for _, part := range []string{"fastest", "rr", "wrr", "lc", "wlc", "dh", "sh", "mh", "sed", "nq"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("an unknown scheduler: %q is missing in %v", part, err)
		}
	}
	if out := s.run("ipvsadm", "-Sn"); out != "" {
		t.Errorf("left:\n%s", out)
	}
}

// What the service unit with its drop-in and the chart grant is enough to probe the mode,
// to serve, and to clean up.
func TestFewCapabilities(t *testing.T) {
	s := newSite(t)
	must(t, s.net.Do(netns.Node, func() error { // on a thread of its own, which ends
		c := config.Default()
		if err := Prepare(&c, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		if on, err := host.Sysctl("net/ipv4/vs/conntrack"); on != "1" || err != nil {
			return fmt.Errorf("net/ipv4/vs/conntrack is %q: %v", on, err)
		}
		if err := confine(unix.CAP_NET_ADMIN, unix.CAP_NET_RAW); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("not confined: %v", err)
		}
		return serveOnce(t)
	}))
}

// Where nothing can set the kernel parameter that masquerading needs, no node may choose
// the mode: it would program nothing, for ever.
func TestProbeNeedsTracking(t *testing.T) {
	s := newSite(t)
	before := objects(t, s)
	must(t, s.aside(func() error {
		if err := readOnly("/proc/sys"); err != nil {
			return err
		}
		err := probe(t.Context())
		if err == nil || !strings.Contains(err.Error(), "net.ipv4.vs.conntrack=1") || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("read-only sysctls: %v", err)
		}
		return nil
	}))
	if after := objects(t, s); after != before {
		t.Errorf("left:\n%s\nwas:\n%s", after, before)
	}
	must(t, s.aside(func() error { // where the value is right, none need be set
		if err := applySysctls(config.IPVS{}, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		return errors.Join(readOnly("/proc/sys"), probe(t.Context()))
	}))
}

// aside runs f on the node, on a thread of its own, which ends.
func (s *site) aside(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- s.net.Do(netns.Node, f)
	}()
	return <-done
}

// readOnly makes a folder read-only for the calling thread.
func readOnly(folder string) error {
	return errors.Join(ownMounts(), unix.Mount(folder, folder, "", unix.MS_BIND, ""),
		unix.Mount("", folder, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// ownMounts gives the calling thread mounts that no other one sees.
func ownMounts() error {
	return errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// serveOnce is the life of the mode with one Service.
func serveOnce(t *testing.T) error {
	if err := probe(t.Context()); err != nil {
		return err
	}
	c := config.Default()
	b, err := openBackend(t.Context(), &c, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Adopt(t.Context()); err != nil {
		return err
	}
	b.SetHost(testHost())
	b.Update([]model.Delta{{New: web(first)}})
	if _, err := b.Sync(t.Context()); err != nil {
		return err
	}
	out, err := exec.CommandContext(t.Context(), "ipvsadm", "-Sn").CombinedOutput()
	if err != nil || !strings.Contains(string(out), first) {
		return fmt.Errorf("the virtual server: %v: %s", err, out)
	}
	return b.Remove(t.Context())
}

// confine drops all capabilities of the calling thread and its children but some.
func confine(keep ...int) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	for c := range unix.CAP_LAST_CAP + 1 {
		if slices.Contains(keep, c) {
			caps[c/32].Permitted |= 1 << (c % 32)
		} else if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	for i := range caps {
		caps[i].Effective = caps[i].Permitted
	}
	return errors.Join(unix.Capset(&head, &caps[0]), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
}
