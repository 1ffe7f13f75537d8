// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// rig is a backend on an emulated HNS. After each test everything that must
// never be is looked for.
type rig struct {
	*testing.T
	emu      *hnsemu.Emulator
	version  hns.Version
	options  hns.Options
	settings hns.Settings
	network  string
	driver   *hns.Driver
	backend  dataplane.Backend
	host     *model.Host
	ports    map[string]*model.Port
}

// on runs a test in virtual time on an HNS of a version with an l2bridge network
// and two pods, 10.244.1.2 and 10.244.1.3.
func on(t *testing.T, v hns.Version, test func(*rig)) {
	t.Helper()
	onNetwork(t, v, hns.TypeL2Bridge, test)
}

func onNetwork(t *testing.T, v hns.Version, kind string, test func(*rig)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, emu: hnsemu.New(v), version: v, options: hns.Newest(), settings: settings(), ports: map[string]*model.Port{}}
		r.options.Overlay = kind == hns.TypeOverlay
		r.settings.Journal = filepath.Join(dir, "journal")
		r.network = r.emu.AddNetwork("pods", kind, overlay()...)
		if r.options.Overlay {
			r.settings.SourceVIP = netip.MustParseAddr("10.244.1.254")
		}
		r.emu.AddPod(r.network, "10.244.1.2")
		r.emu.AddPod(r.network, "10.244.1.3")
		r.host = &model.Host{Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
		r.restart()
		t.Cleanup(func() {
			r.backend.Close()
			r.sound()
			if n := r.emu.Handles(); n > 0 {
				t.Errorf("%d handles are open at the end", n)
			}
		})
		test(r)
	})
}

// restart is a new process on the same HNS, that has not read it yet.
func (r *rig) restart() {
	r.Helper()
	if r.backend != nil {
		r.backend.Close()
	}
	d, err := hns.NewDriver(r.emu.Client(), r.version, r.settings)
	if err != nil {
		r.Fatal(err)
	}
	r.driver, r.backend = d, dataplane.New(hns.NewCompiler(r.options), d)
	r.emu.Forget()
}

// begin reads HNS and programs everything that was set before.
func (r *rig) begin() {
	r.Helper()
	if err := r.backend.Adopt(r.Context()); err != nil {
		r.Fatal(err)
	}
	r.backend.SetHost(r.host)
	var all []model.Delta
	for _, name := range slices.Sorted(maps.Keys(r.ports)) {
		all = append(all, model.Delta{New: r.ports[name]})
	}
	r.backend.Update(all)
	r.sync()
}

// resume restarts on what is there, which must be right.
func (r *rig) resume() {
	r.Helper()
	r.restart()
	r.begin()
	r.unwritten()
}

// unwritten demands that nothing was written since the last restart.
func (r *rig) unwritten() {
	r.Helper()
	if n := r.emu.Writes(); n != 0 {
		r.Errorf("%d writes: %v", n, r.emu.Log())
	}
}

// others adds a load balancer of another program over a pod of the network.
func (r *rig) others(vips ...string) (id string) {
	return r.emu.AddBalancer(hns.LoadBalancer{
		HostComputeEndpoints: []string{r.emu.AddPod(r.network, "10.244.1.77")},
		FrontendVIPs:         vips, PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 1, ExternalPort: 80}},
	}, true)
}

// set gives a Service a ClusterIP and endpoints ("10.244.1.2 10.244.2.2"); those
// in 10.244.1.0/24 are local. Nothing is programmed before the next sync.
func (r *rig) set(name, vip, endpoints string) {
	p := port(name, vip, endpoints)
	if r.ports[name] != nil || r.started() {
		r.backend.Update([]model.Delta{{Old: r.ports[name], New: p}})
	}
	r.ports[name] = p
}

func (r *rig) unset(name string) {
	r.backend.Update([]model.Delta{{Old: r.ports[name]}})
	delete(r.ports, name)
}

func (r *rig) started() bool { return r.backend.Health().Objects > 0 }

// sync syncs, and demands that it works.
func (r *rig) sync() {
	r.Helper()
	if _, err := r.backend.Sync(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// fails syncs, and demands that it fails for this reason.
func (r *rig) fails(reason string) {
	r.Helper()
	if _, err := r.backend.Sync(r.Context()); err == nil || !strings.Contains(err.Error(), reason) {
		r.Fatalf("got %v, want %q", err, reason)
	}
}

// settle lets time pass until nothing fails any more, or waits.
func (r *rig) settle() {
	r.Helper()
	for range 200 {
		next := r.backend.Next()
		if next.IsZero() {
			if f := r.backend.Health().Failures; len(f) > 0 {
				r.Fatalf("still failing: %v", f)
			}
			return
		}
		time.Sleep(time.Until(next))
		r.backend.Sync(r.Context())
	}
	r.Fatalf("still failing: %v", r.backend.Health().Failures)
}

// audit reads HNS back and repairs it.
func (r *rig) audit() (drift int) {
	r.Helper()
	drift, err := r.backend.Audit(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	r.sync()
	return drift
}

// serves demands that a VIP is balanced over exactly these endpoints; none is no
// load balancer.
func (r *rig) serves(vip, endpoints string) {
	r.Helper()
	if got := r.served(vip); got != endpoints {
		r.Errorf("%s is balanced over %q, want %q", vip, got, endpoints)
	}
}

func (r *rig) served(vip string) string {
	addrs := map[string]string{}
	for _, e := range r.emu.Endpoints() {
		if len(e.IpConfigurations) > 0 {
			addrs[e.ID] = e.IpConfigurations[0].IpAddress
		}
	}
	for _, lb := range r.emu.Balancers() {
		if slices.Equal(lb.FrontendVIPs, []string{vip}) {
			var all []string
			for _, id := range lb.HostComputeEndpoints {
				all = append(all, addrs[id])
			}
			slices.Sort(all)
			return strings.Join(all, " ")
		}
	}
	return ""
}

// balancer returns the load balancer of a VIP.
func (r *rig) balancer(vip string) hns.LoadBalancer {
	r.Helper()
	for _, lb := range r.emu.Balancers() {
		if slices.Equal(lb.FrontendVIPs, []string{vip}) {
			return lb
		}
	}
	r.Fatalf("no load balancer for %s", vip)
	return hns.LoadBalancer{}
}

// remotes returns the addresses of the endpoints that are not pods of this node.
func (r *rig) remotes() string {
	var all []string
	for _, e := range r.emu.Endpoints() {
		if e.Flags&hns.FlagRemote != 0 {
			all = append(all, e.IpConfigurations[0].IpAddress)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// spent demands how many calls, and how many that write, there were since the
// last time.
func (r *rig) spent(most, writes int) {
	r.Helper()
	if n, w := r.emu.Calls(), r.emu.Writes(); n > most || w != writes {
		var names []string
		for _, c := range r.emu.Log() {
			names = append(names, fmt.Sprintf("%s(%s)=0x%x", c.Name, c.ID, uint32(c.Code)))
		}
		r.Errorf("%d calls, %d of them writes; want at most %d and %d: %v", n, w, most, writes, names)
	}
	r.emu.Forget()
}

// gaps demands how many times a frontend had no load balancer meanwhile.
func (r *rig) gaps(want int) {
	r.Helper()
	if got := r.emu.Outages(); len(got) != want {
		r.Errorf("gaps: %v, want %d", got, want)
	}
}

func (r *rig) sound() {
	r.Helper()
	if err := r.emu.Check(); err != nil {
		r.Error(err)
	}
}

func port(name, vip, endpoints string) *model.Port {
	p := &model.Port{ID: model.PortID{Service: model.ServiceName{Namespace: "default", Name: name}, Proto: model.TCP}}
	act := model.Action{Verdict: model.Reject, Why: model.WhyNoEndpoints}
	if endpoints != "" {
		act = model.Action{Verdict: model.Balance, Pool: &model.Pool{}}
		for _, e := range strings.Fields(endpoints) {
			a := netip.MustParseAddr(e)
			act.Pool.Endpoints = append(act.Pool.Endpoints, model.Endpoint{
				Addr: netip.AddrPortFrom(a, 8080), Local: strings.HasPrefix(e, "10.244.1."),
			})
		}
	}
	number := uint16(80)
	if name == "kube-dns" {
		number = 53
	}
	p.Frontends = []model.Frontend{{
		Kind: model.KindClusterIP, At: netip.AddrPortFrom(netip.MustParseAddr(vip), number),
		On: [model.Origins]model.Action{act, act, act},
	}}
	return p
}
