// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"log/slog"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// site is a lab with a backend on its node.
type site struct {
	dataplane.Backend
	t       testing.TB
	net     *netns.Net
	driver  *Driver
	options Options

	commands *xtables.Commands
	ports    map[model.PortID]*model.Port
}

const (
	client = "10.244.1.10"
	first  = "10.244.1.2"
	second = "10.244.1.3"
)

var (
	vip      = netip.MustParseAddrPort("10.96.0.10:80")
	external = netip.MustParseAddrPort("203.0.113.10:80")
	node     = netip.MustParseAddr("192.0.2.1")
)

func newSite(t testing.TB) *site {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	if err := virtualserver.Load(); err != nil {
		t.Skip(err)
	}
	plan := netns.Plan{Node: []netip.Addr{node, netip.MustParseAddr("2001:db8::1")}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}}
	for i, ip := range []string{client, first, second} {
		plan.Pods = append(plan.Pods, netns.Pod{Place: netns.Place(ip), Interface: "pod" + string(rune('0'+i)), Addrs: []netip.Addr{netip.MustParseAddr(ip)}})
	}
	net, err := netns.New(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, net: net}
	if s.commands, _, err = xtables.Find(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.close()
		if err := net.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, ip := range []string{first, second} {
		if _, err := net.Serve(netns.Place(ip), netip.AddrPortFrom(netip.MustParseAddr(ip), 8080), model.TCP); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func testHost() *model.Host {
	return &model.Host{
		Name: "node-1", IPs: []netip.Addr{node, netip.MustParseAddr("2001:db8::1")},
		Pods:      model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}},
	}
}

// open opens the mode on the node and adopts installed objects.
func (s *site) open() {
	s.t.Helper()
	err := s.net.Do(netns.Node, func() (err error) {
		c := config.IPVS{}
		if err = applySysctls(c, slog.New(slog.DiscardHandler)); err == nil {
			s.driver, err = Open(s.options, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, s.commands, slog.New(slog.DiscardHandler))
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.Backend, s.ports = dataplane.New(NewCompiler(s.options), s.driver), map[model.PortID]*model.Port{}
	if err := s.Adopt(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.SetHost(testHost())
}

func (s *site) close() {
	if s.Backend != nil {
		_ = s.Backend.Close()
		s.Backend = nil
	}
}

// set makes these ports all there are, and returns how many ops that took.
func (s *site) set(ports ...*model.Port) int {
	s.t.Helper()
	var deltas []model.Delta
	gone := maps.Clone(s.ports)
	for _, p := range ports {
		deltas = append(deltas, model.Delta{Old: s.ports[p.ID], New: p})
		delete(gone, p.ID)
		s.ports[p.ID] = p
	}
	for id, p := range gone {
		deltas = append(deltas, model.Delta{Old: p})
		delete(s.ports, id)
	}
	s.Update(deltas)
	w, err := s.Sync(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return w.Ops
}

// same fails the test if the kernel has anything but what these ports need.
func (s *site) same(host *model.Host, ports []*model.Port) {
	s.t.Helper()
	want, _ := dataplane.Compile(NewCompiler(s.options), host, ports)
	have, err := s.driver.observe(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, k := range slices.SortedFunc(maps.Keys(want), compareKeys) {
		if v, ok := have[k]; !ok || v != want[k] {
			s.t.Errorf("%s: is there: %t, %+v, want %+v", k, ok, v, want[k])
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			s.t.Errorf("%s must not be there", k)
		}
	}
}

// run runs a command on the node and returns what it printed.
func (s *site) run(name string, args ...string) (out string) {
	s.t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		s.t.Skipf("the test looks with %s: %v", name, err)
	}
	err := s.net.Do(netns.Node, func() error {
		b, err := exec.Command(name, args...).CombinedOutput()
		out = string(b)
		return err
	})
	if err != nil {
		s.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return out
}

// web is a Service with a cluster IP and these endpoints, all of this node.
func web(ips ...string) *model.Port {
	pool := &model.Pool{}
	for _, ip := range ips {
		pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr(ip), 8080), Local: true})
	}
	on := [model.Origins]model.Action{{Pool: pool}, {Pool: pool, SNAT: true}, {Pool: pool, SNAT: true}}
	return &model.Port{
		ID:        model.PortID{Service: model.ServiceName{Namespace: "default", Name: "web"}, Proto: model.TCP},
		Frontends: []model.Frontend{{At: vip, On: on}, {Kind: model.KindExternalIP, At: external, On: on}},
	}
}

// dial makes a new connection from the client and returns which endpoint answered.
func (s *site) dial() string {
	s.t.Helper()
	a, err := s.net.Dial(netns.Call{From: client, Proto: model.TCP, To: vip, Timeout: 2 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	if a.Outcome != netns.Answered {
		return a.Outcome.String()
	}
	return a.Server.Addr().String()
}
