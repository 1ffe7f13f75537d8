// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// replace sets a Service to a port that was made by hand.
func (r *rig) replace(name string, p *model.Port) {
	r.backend.Update([]model.Delta{{Old: r.ports[name], New: p}})
	r.ports[name] = p
}

// endpoint returns the endpoint of a name.
func (r *rig) endpoint(name string) hns.Endpoint {
	r.Helper()
	for _, e := range r.emu.Endpoints() {
		if e.Name == name {
			return e
		}
	}
	r.Fatalf("no endpoint %s", name)
	return hns.Endpoint{}
}

func provider(e hns.Endpoint) string {
	for _, p := range e.Policies {
		if p.Type == hns.PolicyProvider {
			return string(p.Settings)
		}
	}
	return ""
}

func TestOverlay(t *testing.T) {
	onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.set("nodes", "10.96.0.11", "192.0.2.2")
		r.begin()
		for name, want := range map[string][2]string{
			"tandem_10.244.2.2":     {"02-11-0a-f4-02-02", "192.0.2.2"},
			"tandem_192.0.2.2":      {"02-11-c0-00-02-02", "192.0.2.2"},
			"tandem-vip_10.96.0.10": {hostMAC, "192.0.2.1"},
		} {
			e := r.endpoint(name)
			if e.MacAddress != want[0] || !strings.Contains(provider(e), `"`+want[1]+`"`) {
				r.Errorf("%s: %s behind %s, want %v", name, e.MacAddress, provider(e), want)
			}
		}
		if got := r.balancer("10.96.0.10").SourceVIP; got != "10.244.1.254" {
			r.Errorf("pods are sent to from %s, want the source VIP", got)
		}
		if got := r.balancer("10.96.0.11").SourceVIP; got != "192.0.2.1" {
			r.Errorf("nodes are sent to from %s, want the node", got)
		}
		r.resume()
	})
}

// A node has joined since the network was read.
func TestANodeJoinsTheOverlay(t *testing.T) {
	onNetwork(t, hnsemu.WS2025, hns.TypeOverlay, func(r *rig) {
		web(r)
		r.emu.SetPolicies(r.network, append(overlay(), remoteSubnet("10.244.7.0/24", "192.0.2.7"))...)
		r.set("web", "10.96.0.10", "10.244.7.2")
		r.sync()
		if got := provider(r.endpoint("tandem_10.244.7.2")); !strings.Contains(got, "192.0.2.7") {
			r.Errorf("behind %s", got)
		}
		if got := r.balancer("10.96.0.10").SourceVIP; got != "10.244.1.254" {
			r.Errorf("source VIP %s", got)
		}
	})
}

// HNS is asked for what is wanted, and given nothing that it alone decides: no id, also not that of
// a load balancer that is replaced, no state and no health. kube-proxy gives none either.
func TestWhatIsReadIsNotSent(t *testing.T) {
	for _, v := range []hns.Version{hnsemu.WS2019, hnsemu.WS2025} {
		onNetwork(t, v, hns.TypeOverlay, func(r *rig) {
			web(r)
			for _, lb := range r.emu.Balancers() {
				r.emu.Change(lb.ID, func(lb *hns.LoadBalancer) { lb.State, lb.Health = 2, hns.Health{LastErrorCode: 5} })
			}
			r.emu.SetPolicies(r.network, remoteSubnet("10.244.2.0/24", "192.0.2.99")) // all endpoints are replaced
			for _, twins := range []bool{true, false} {
				r.emu.Behave(hnsemu.Behaviour{Twins: twins})
				r.audit()
				r.settle()
				r.emu.SetPolicies(r.network, remoteSubnet("10.244.2.0/24", "192.0.2.98"))
			}
			r.set("web", "10.96.0.10", "10.244.2.3")
			r.sync()
			asked := 0
			for _, c := range r.emu.Log() {
				if c.Kind != hnsemu.LoadBalancer || c.Verb != hnsemu.Create && c.Verb != hnsemu.Modify {
					continue
				}
				asked++
				for _, field := range []string{`"ID"`, `"State"`, `"Health"`} {
					if strings.Contains(c.Text, field) {
						r.Errorf("%s: %s is asked with %s: %s", v, c.Name, field, c.Text)
					}
				}
			}
			if asked < 4 {
				r.Errorf("%s: %d calls", v, asked)
			}
		})
	}
}

// Of ranges that overlap the last one counts, as for kube-proxy: HNS lists routes as they were
// added (assumed), so that is the node that took a range over.
func TestRoutesOfTheOverlayOverlap(t *testing.T) {
	onNetwork(t, hnsemu.WS2025, hns.TypeOverlay, func(r *rig) {
		r.emu.SetPolicies(r.network, remoteSubnet("10.244.2.0/24", "192.0.2.2"), remoteSubnet("10.244.2.0/24", "192.0.2.7"), remoteSubnet("10.244.9.0/24", "192.0.2.2"))
		r.set("web", "10.96.0.10", "10.244.2.2 192.0.2.2 192.0.2.7")
		r.begin()
		for name, want := range map[string]string{"tandem_10.244.2.2": "192.0.2.7", "tandem_192.0.2.2": "192.0.2.2", "tandem_192.0.2.7": "192.0.2.7"} {
			if got := provider(r.endpoint(name)); !strings.Contains(got, `"`+want+`"`) {
				r.Errorf("%s is behind %s, want %s", name, got, want)
			}
		}
	})
}

// A node comes back with another address: its pods' endpoints are made again, and
// the load balancers that use them follow in place.
func TestANodeOfTheOverlayChangesItsAddress(t *testing.T) {
	onNetwork(t, hnsemu.WS2025, hns.TypeOverlay, func(r *rig) {
		web(r)
		before := r.endpoint("tandem_10.244.2.2").ID
		r.emu.SetPolicies(r.network, remoteSubnet("10.244.2.0/24", "192.0.2.99"))
		r.emu.Behave(hnsemu.Behaviour{Twins: true})
		if drift := r.audit(); drift == 0 {
			r.Fatal("not noticed")
		}
		r.settle()
		e := r.endpoint("tandem_10.244.2.2")
		if e.ID == before || !strings.Contains(provider(e), "192.0.2.99") {
			r.Errorf("behind %s", provider(e))
		}
		served(r)
		r.gaps(0)
		if drift := r.audit(); drift != 0 {
			r.Errorf("drift: %d", drift)
		}
	})
}

func TestAnOverlayWithoutASourceVIP(t *testing.T) {
	onNetwork(t, hnsemu.WS2025, hns.TypeOverlay, func(r *rig) {
		r.settings.SourceVIP = netip.Addr{}
		r.restart()
		web(r)
		if e := r.endpoint("tandem-source-vip"); e.IpConfigurations[0].IpAddress != "10.244.1.4" || e.MacAddress != hostMAC || e.Flags != 0 {
			r.Errorf("source VIP endpoint %+v, want a local one with the first address that HNS has free", e)
		}
		r.sourced("10.244.1.4")
		const problem = "HNS: 10.244.1.4, chosen by HNS, may be given to a pod by the CNI plug-in: reserve an address of the node's pod range there and set --source-vip (winkernel.sourceVip): no source VIP is reserved on this node of an overlay\n"
		r.says(problem)
		r.restart() // it is found again
		r.begin()
		r.sourced("10.244.1.4")
		r.says(problem)
		r.unwritten()
		r.emu.Remove(r.endpoint("tandem-source-vip").ID)
		if drift := r.audit(); drift == 0 {
			r.Error("a source VIP without an endpoint is no drift")
		}
		r.settle()
		r.sourced("10.244.1.4")
		r.says(problem)
		r.settings.SourceVIP = netip.MustParseAddr("10.244.1.4") // the administrator has reserved it
		r.restart()
		r.begin()
		r.says("")
		if err := hns.Remove(r.Context(), r.emu.Client(), r.settings); err != nil {
			r.Error(err)
		}
		for _, e := range r.emu.Endpoints() {
			if strings.HasPrefix(e.Name, "tandem") {
				r.Errorf("%s is left", e.Name)
			}
		}
	})
}

// sourced demands the source VIP of the load balancer of web.
func (r *rig) sourced(want string) {
	r.Helper()
	if got := r.balancer("10.96.0.10").SourceVIP; got != want {
		r.Errorf("source VIP %s, want %s", got, want)
	}
}

// An address that is set, or that flannel's scripts have reserved, has no endpoint
// where no kube-proxy ever ran: it is made, with that address.
func TestASourceVIPWithoutAnEndpoint(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sourceVip.json")
	if err := os.WriteFile(file, []byte("\ufeff"+`{"ips":[{"address":"10.244.1.9/24"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	onNetwork(t, hnsemu.WS2019, hns.TypeOverlay, func(r *rig) {
		r.settings.SourceVIP, r.settings.SourceVIPFile = netip.Addr{}, file
		r.restart()
		web(r)
		if e := r.endpoint("tandem-source-vip"); e.IpConfigurations[0].IpAddress != "10.244.1.9" {
			r.Errorf("source VIP endpoint %+v", e)
		}
		r.sourced("10.244.1.9")
		r.says("")
		r.restart()
		r.begin()
		r.says("")
		if err := r.backend.Remove(r.Context()); err != nil {
			r.Error(err)
		}
		if all := r.emu.Endpoints(); len(all) != 2 {
			r.Errorf("left beside the two pods: %+v", all)
		}
	})
}

// Others' endpoints for it are used: of Calico, of OpenShift, and kube-proxy's own,
// which has no name.
func TestASourceVIPOfOthers(t *testing.T) {
	for name, set := range map[string]string{"Calico_ep": "", "VIPEndpoint": "", "": "10.244.1.250"} {
		onNetwork(t, hnsemu.WS2025, hns.TypeOverlay, func(r *rig) {
			r.settings.SourceVIP, _ = netip.ParseAddr(set)
			r.emu.AddEndpoint(hns.Endpoint{Name: name, HostComputeNetwork: r.network, IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.1.250"}}})
			r.restart()
			web(r)
			r.sourced("10.244.1.250")
			r.says("")
			for _, e := range r.emu.Endpoints() {
				if e.Name == "tandem-source-vip" {
					r.Errorf("beside %q a second one was made", name)
				}
			}
		})
	}
}

func TestFindNetwork(t *testing.T) {
	bridge := hns.Network{ID: "1", Name: "cbr0", Type: "L2Bridge"}
	over := hns.Network{ID: "2", Name: "vxlan0", Type: "overlay"}
	nat := hns.Network{ID: "3", Name: "nat", Type: "NAT"}
	external := hns.Network{ID: "5", Name: "External", Type: "L2Bridge"} // the plug-in's own comes later
	ovs := hns.Network{ID: "4", Name: "antrea-hnsnetwork", Type: "Transparent"}
	for _, tt := range []struct {
		all       []hns.Network
		name      string
		want, err string
	}{
		{[]hns.Network{nat, bridge}, "", "cbr0", ""},
		{[]hns.Network{bridge, over}, "vxlan0", "vxlan0", ""},
		{[]hns.Network{bridge, over}, "", "", "--network-name"},
		{[]hns.Network{nat}, "", "", "nat (NAT)"},
		{[]hns.Network{external, over}, "", "vxlan0", ""},
		{[]hns.Network{external}, "", "", "External (L2Bridge)"},
		{[]hns.Network{external, over}, "External", "External", ""},
		{[]hns.Network{{Name: "ext", Type: "L2Bridge"}, {Name: "azure", Type: "L2Bridge"}}, "", "azure", ""},
		{[]hns.Network{{Name: "ext", Type: "L2Bridge"}}, "", "", "ext (L2Bridge)"},
		{nil, "", "", "there are none"},
		{[]hns.Network{bridge}, "flannel", "", "cbr0 (L2Bridge)"},
		{[]hns.Network{ovs}, "antrea-hnsnetwork", "antrea-hnsnetwork", "Transparent"},
	} {
		got, err := hns.FindNetwork(tt.all, tt.name)
		if got.Name != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%v %q: got %q, %v", tt.all, tt.name, got.Name, err)
		}
	}
}

// While HNS makes an overlay, the node's address is on no interface for some
// seconds. Cluster IPs are reachable once it is there.
func TestTheNodesAddressComesLater(t *testing.T) {
	onNetwork(t, hnsemu.WS2025, hns.TypeOverlay, func(r *rig) {
		there := false
		r.settings.MAC = func(netip.Addr) (string, error) {
			if !there {
				return "", errors.New("no interface has it")
			}
			return hostMAC, nil
		}
		r.restart()
		if err := r.backend.Adopt(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.backend.SetHost(r.host)
		r.backend.Update([]model.Delta{{New: port("web", "10.96.0.10", "10.244.1.2 10.244.2.2")}})
		r.ports["web"] = port("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.fails("no interface has the node's address")
		there = true
		r.settle()
		if got := r.endpoint("tandem-vip_10.96.0.10").MacAddress; got != hostMAC {
			r.Errorf("the VIP leads to %s, want %s", got, hostMAC)
		}
		there = false
		r.restart()
		there = true
		r.begin()
		r.unwritten()
	})
}

// A new node has the range of pods that another one had: new endpoints lead to
// it at once, and those that are there are looked at.
func TestANodeOfTheOverlayIsReplaced(t *testing.T) {
	onNetwork(t, hnsemu.WS2025, hns.TypeOverlay, func(r *rig) {
		web(r)
		r.emu.SetPolicies(r.network, remoteSubnet("10.244.2.0/24", "192.0.2.99"))
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.8")
		r.sync()
		if got := provider(r.endpoint("tandem_10.244.2.8")); !strings.Contains(got, "192.0.2.99") {
			r.Errorf("behind %s", got)
		}
		if yes, _ := r.backend.Disturbed(r.Context()); !yes {
			r.Error("what is there is not looked at")
		}
	})
}

// A node's pods are in slices before its route is in HNS: until then their endpoints lead to
// this node, as those of addresses outside do. They are looked at when a Commit reads of the
// route, and within seconds where none does; addresses that no route is for cost ever less.
func TestARouteOfTheOverlayComesLater(t *testing.T) {
	for _, commit := range []bool{false, true} {
		onNetwork(t, hnsemu.WS2025, hns.TypeOverlay, func(r *rig) {
			r.set("web", "10.96.0.10", "10.244.7.2 203.0.113.9")
			r.begin()
			if got := provider(r.endpoint("tandem_10.244.7.2")); !strings.Contains(got, "192.0.2.1") {
				r.Fatalf("behind %s", got)
			}
			r.emu.SetPolicies(r.network, append(overlay(), remoteSubnet("10.244.7.0/24", "192.0.2.7"))...)
			r.emu.Behave(hnsemu.Behaviour{Twins: true})
			within := 6 * time.Second
			if commit {
				r.set("api", "10.96.0.11", "10.244.2.9")
				r.sync()
				within = 0
			}
			start := time.Now()
			for {
				yes, err := r.backend.Disturbed(r.Context())
				if yes || err != nil || time.Since(start) > within {
					if !yes || err != nil {
						r.Errorf("commit %t: not looked at after %v: %v", commit, within, err)
					}
					break
				}
				time.Sleep(time.Second / 2)
			}
			r.audit()
			r.settle()
			for name, want := range map[string]string{"tandem_10.244.7.2": "192.0.2.7", "tandem_203.0.113.9": "192.0.2.1"} {
				if got := provider(r.endpoint(name)); !strings.Contains(got, `"`+want+`"`) {
					r.Errorf("%s is behind %s", name, got)
				}
			}
			r.serves("10.96.0.10", "10.244.7.2 203.0.113.9")
			r.gaps(0)
			r.emu.Forget()
			for range 2 * 3600 * 2 {
				if yes, err := r.backend.Disturbed(r.Context()); yes || err != nil {
					r.Fatal("disturbed by nothing", err)
				}
				time.Sleep(time.Second / 2)
			}
			if n := r.emu.Calls("HcnEnumerateNetworks"); n == 0 || n > 80 {
				r.Errorf("in two hours the network was read %d times", n)
			}
		})
	}
}

// The source VIP is made while HNS is read: the reading, which has not seen it, does
// not take it away.
func TestASourceVIPMadeWhileReading(t *testing.T) {
	onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
		r.settings.SourceVIP = netip.Addr{}
		r.restart()
		if err := r.backend.Adopt(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.backend.SetHost(r.host)
		reading, made, audited := make(chan struct{}), make(chan struct{}), make(chan error)
		first := true
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			if c.Name == "HcnEnumerateLoadBalancers" && first {
				first = false
				close(reading)
				<-made
			}
			return 0
		})
		go func() {
			_, err := r.backend.Audit(r.Context())
			audited <- err
		}()
		<-reading
		r.sync()
		close(made)
		if err := <-audited; err != nil {
			r.Fatal(err)
		}
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.backend.Update([]model.Delta{{New: r.ports["web"]}})
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
	})
}
