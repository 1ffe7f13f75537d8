// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// interruption is what happens to HNS during a Commit: code answers the call.
type interruption struct {
	name string
	code hns.Code
	down bool             // and every call for 20 seconds; handles are lost
	lost func(*rig)       // what is not there afterwards
	b    hnsemu.Behaviour // of HNS before and after
}

// HNS is restarted at each single call of a Commit, or answers that one call with an
// error of the RPC layer; it comes back with all objects, without its load balancers, or
// with one (kubernetes#110849), or its network is made again. Everything is served in the
// end, nothing is there twice or left over, and a restart of the proxy writes nothing.
func TestHNSIsInterruptedAtEachCall(t *testing.T) {
	balancers := func(r *rig) {
		for _, lb := range r.emu.Balancers() {
			r.emu.Remove(lb.ID)
		}
	}
	for _, what := range []interruption{
		{name: "answer lost", code: 0x6be},
		{name: "restarted", down: true},
		{name: "restarted, handles 0x6be", down: true, b: hnsemu.Behaviour{StaleHandle: 0x6be}},
		{name: "load balancers lost", down: true, lost: balancers},
		{name: "one load balancer left", down: true, lost: func(r *rig) {
			for _, lb := range r.emu.Balancers()[1:] {
				r.emu.Remove(lb.ID)
			}
		}},
		{name: "network made anew", down: true, lost: func(r *rig) {
			balancers(r)
			r.emu.RemoveNetwork(r.network)
			r.network = r.emu.AddNetwork("pods", r.kind(), overlay()...)
			r.emu.AddPod(r.network, "10.244.1.2")
			r.emu.AddPod(r.network, "10.244.1.3")
		}},
	} {
		for _, kind := range []string{hns.TypeL2Bridge, hns.TypeOverlay} {
			for _, v := range []hns.Version{hnsemu.WS2019, hnsemu.WS2025} {
				t.Run(fmt.Sprintf("%s %s %s", what.name, kind, v), func(t *testing.T) {
					calls := 1
					for at := 0; at < calls; at++ {
						calls = interrupted(t, v, kind, what, at)
						if t.Failed() {
							t.Fatalf("at call %d of %d", at, calls)
						}
					}
				})
			}
		}
	}
}

// kind is the kind of the rig's network.
func (r *rig) kind() string {
	if r.options.Overlay {
		return hns.TypeOverlay
	}
	return hns.TypeL2Bridge
}

// interrupted interrupts one call of a Commit, and returns how many there are without
// that.
func interrupted(t *testing.T, v hns.Version, kind string, what interruption, at int) (calls int) {
	onNetwork(t, v, kind, func(r *rig) {
		r.settings.SourceVIP = netip.Addr{}
		r.emu.Behave(what.b)
		r.restart()
		web(r)
		n := 0
		r.emu.Hook(func(*hnsemu.Call) hns.Code {
			if n++; n != at+1 {
				return 0
			}
			if what.down {
				r.emu.Down(true)
			}
			return what.code
		})
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.4")
		r.set("new", "10.96.0.12", "10.244.1.3 10.244.3.2")
		r.unset("api")
		r.backend.Sync(r.Context()) // it may fail
		calls = n
		time.Sleep(20 * time.Second)
		if what.lost != nil {
			what.lost(r)
		}
		r.emu.Hook(nil)
		r.emu.Down(false)
		r.driver.Doubt() // the service manager says so
		for range 3 {
			if _, err := r.backend.Audit(r.Context()); err != nil {
				r.Fatal(err)
			}
			r.backend.Sync(r.Context()) // an old handle may fail once
			r.settle()
			time.Sleep(2 * time.Minute)
			r.backend.Sync(r.Context())
		}
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.4")
		r.serves("10.96.0.12", "10.244.1.3 10.244.3.2")
		r.serves("10.96.0.11", "")
		if n := len(r.emu.Balancers()); n != 2 {
			r.Errorf("%d load balancers", n)
		}
		want := "10.244.2.4 10.244.3.2"
		if r.options.Overlay {
			want += " 10.96.0.10 10.96.0.12"
		}
		if got := r.remotes(); got != want {
			r.Errorf("remote endpoints %s, want %s", got, want)
		}
		r.differs()
		r.resume()
	})
	return calls
}

// The disk is full: what is programmed does not wait for the journal, at the start
// neither, and once there is room again the journal is whole.
func TestTheDiskIsFull(t *testing.T) {
	on(t, hnsemu.WS2022, func(r *rig) {
		full := r.settings.Journal + ".new" // cannot be written while it is a folder
		for _, before := range []bool{true, false} {
			if before { // the start
				if err := os.Mkdir(full, 0o700); err != nil {
					r.Fatal(err)
				}
				r.restart()
				web(r)
			} else { // and later
				if err := os.Mkdir(full, 0o700); err != nil {
					r.Fatal(err)
				}
				r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.4")
				r.sync()
				r.audit()
				r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
				r.sync()
			}
			served(r)
			if err := os.Remove(full); err != nil {
				r.Fatal(err)
			}
			r.set("new", "10.96.0.12", "10.244.2.2")
			r.sync()
			r.unset("new")
			r.sync()
		}
		text, err := os.ReadFile(r.settings.Journal)
		for _, lb := range r.emu.Balancers() {
			if !strings.Contains(string(text), "lb "+lb.ID+"\n") {
				r.Errorf("%s is not in the journal, %v", lb.ID, err)
			}
		}
		r.resume()
	})
}

// The CNI plug-in makes an overlay again under a proxy that runs: with another id and
// subnet, and without the source VIP that HNS had chosen. Load balancers are still there,
// on endpoints that are gone.
func TestTheOverlayIsMadeAnew(t *testing.T) {
	onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
		r.settings.SourceVIP = netip.Addr{}
		r.restart()
		web(r)
		before := r.balancer("10.96.0.10").SourceVIP
		r.emu.RemoveNetwork(r.network)
		r.network = r.emu.AddNetwork("pods", hns.TypeOverlay, overlay()...)
		r.emu.AddPod(r.network, "10.244.1.3")
		r.emu.AddPod(r.network, "10.244.1.2")
		r.emu.AddPod(r.network, before) // it has the address now
		for range 3 {
			if _, err := r.backend.Audit(r.Context()); err != nil {
				r.Fatal(err)
			}
			r.settle()
			time.Sleep(time.Minute)
			r.backend.Sync(r.Context())
		}
		served(r)
		for _, lb := range r.emu.Balancers() {
			if e := r.at(lb.SourceVIP); lb.SourceVIP == before || e.Name != "tandem-source-vip" {
				r.Errorf("%v has the source VIP %s of %s", lb.FrontendVIPs, lb.SourceVIP, e.Name)
			}
		}
		if drift := r.audit(); drift != 0 {
			r.Errorf("drift: %d", drift)
		}
		r.differs()
	})
}

// The address of an overlay's node changes, and with it the interface: cluster IPs lead
// to the new one, and connections to what is no pod come from there.
func TestTheAddressOfAnOverlaysNodeChanges(t *testing.T) {
	onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
		const newMAC = "00-15-5d-99-99-99"
		r.settings.MAC = func(a netip.Addr) (string, error) {
			if a == netip.MustParseAddr("192.0.2.9") {
				return newMAC, nil
			}
			return hostMAC, nil
		}
		r.restart()
		r.set("outside", "10.96.0.13", "198.51.100.7")
		web(r)
		host := *r.host
		host.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
		r.host = &host
		r.backend.SetHost(r.host)
		r.sync()
		if yes, _ := r.backend.Disturbed(r.Context()); !yes {
			r.Error("what is behind the old address is not looked for")
		}
		r.audit()
		r.settle()
		for _, vip := range []string{"10.96.0.10", "10.96.0.11", "10.96.0.13"} {
			if e := r.at(vip); e.MacAddress != newMAC || !strings.Contains(provider(e), "192.0.2.9") {
				r.Errorf("%s leads to %s behind %s", vip, e.MacAddress, provider(e))
			}
		}
		if e := r.at("198.51.100.7"); !strings.Contains(provider(e), "192.0.2.9") {
			r.Errorf("what is outside is behind %s", provider(e))
		}
		if got := r.balancer("10.96.0.13").SourceVIP; got != "192.0.2.9" {
			r.Errorf("the source VIP is %s", got)
		}
		served(r)
		if drift := r.audit(); drift != 0 {
			r.Errorf("drift: %d", drift)
		}
		r.differs()
		r.resume()
	})
}
