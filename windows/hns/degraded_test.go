// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// says demands that the driver reports a problem, or with an empty text none.
func (r *rig) says(text string) {
	r.Helper()
	said := problems(r.driver)
	if text == "" && said != "" || !strings.Contains(said, text) {
		r.Errorf("it says %q, want %q", said, text)
	}
}

// Remote endpoints lose their effect long after they were read first: an audit sees it
// and re-creates them, where they are, whether HNS allows two endpoints with one address,
// or deleting one in use, or neither. One of kube-proxy's that is in use is replaced by ours.
func TestDegradedRemoteEndpoints(t *testing.T) {
	for _, b := range []hnsemu.Behaviour{{}, {Twins: true}, {DeleteInUse: true}} {
		onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
			r.emu.Behave(b)
			r.left("10.244.2.3", "02-11-0a-f4-02-03", "192.0.2.2")
			web(r)
			r.says("")
			degraded := map[string]string{}
			for _, a := range []string{"10.244.2.2", "10.244.2.3", "10.96.0.10"} { // ours, kube-proxy's, a VIP's
				degraded[a] = r.at(a).ID
				r.emu.SetEndpointState(degraded[a], hns.EndpointDegraded)
			}
			if d := r.look().Dump(); d.DegradedEndpoints != 3 {
				r.Errorf("%d endpoints are degraded", d.DegradedEndpoints)
			}
			if drift, err := r.backend.Audit(r.Context()); drift != 3 || err != nil {
				r.Errorf("drift: %d, %v", drift, err)
			}
			r.says("3 remote endpoints are degraded")
			r.sync()
			r.settle()
			r.says("")
			for a, id := range degraded {
				if e := r.at(a); e.ID == id || e.State != 0 {
					r.Errorf("%s has still %+v", a, e)
				}
			}
			served(r)
			if drift := r.audit(); drift != 0 {
				r.Errorf("drift: %d", drift)
			}
		})
	}
}

// Where making an endpoint again does not help, it is tried less and less often.
func TestAnEndpointThatStaysDegraded(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		ids := map[string]bool{}
		for range 24 * 4 { // a day of audits
			id := r.at("10.244.2.2").ID
			ids[id] = true
			r.emu.SetEndpointState(id, hns.EndpointDegraded)
			r.audit()
			r.settle()
			time.Sleep(15 * time.Minute)
		}
		if n := len(ids); n < 10 || n > 30 {
			r.Errorf("it was made anew %d times", n)
		}
		r.says("1 remote endpoints are degraded")
		served(r)
	})
}

// Endpoints of pods are the CNI plug-in's: they are reported and stay.
func TestAPodsEndpointIsNotRepaired(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Forget()
		r.emu.SetEndpointState(r.at("10.244.1.2").ID, hns.EndpointDegraded)
		if drift := r.audit(); drift != 0 {
			r.Errorf("drift: %d", drift)
		}
		r.says("1 endpoints of pods are degraded")
		r.unwritten()
		served(r)
	})
}

// The endpoint of the source VIP is ours where no CNI plug-in has made one.
func TestADegradedSourceVIP(t *testing.T) {
	onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
		r.settings.SourceVIP = netip.Addr{}
		r.restart()
		web(r)
		var source hns.Endpoint
		for _, e := range r.emu.Endpoints() {
			if e.Name == "tandem-source-vip" {
				source = e
			}
		}
		addr, chosen := source.IpConfigurations[0].IpAddress, problems(r.driver) // by HNS
		r.emu.SetEndpointState(source.ID, hns.EndpointDegraded)
		r.audit()
		r.settle()
		if e := r.at(addr); e.ID == source.ID || e.Name != source.Name || e.State != 0 {
			r.Errorf("%+v", e)
		}
		if said := problems(r.driver); said != chosen {
			r.Errorf("it says %q, want %q", said, chosen)
		}
		if drift := r.audit(); drift != 0 {
			r.Errorf("drift: %d", drift)
		}
	})
}

// On a slow node an audit reads the states of some remote endpoints, and the next ones
// those of the others.
func TestStatesOfManyEndpointsAreReadInTurn(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		var all []string
		for i := range 1000 {
			all = append(all, fmt.Sprintf("10.244.2.%d", i%250+1))
			if i >= 250 {
				all[i] = fmt.Sprintf("10.244.%d.%d", 2+i/250, i%250+1)
			}
		}
		r.set("web", "10.96.0.10", strings.Join(all, " "))
		r.begin()
		r.emu.Cost(func(c hnsemu.Call) time.Duration {
			if c.Name == "HcnQueryEndpointProperties" {
				return 200 * time.Millisecond
			}
			return 0
		})
		r.emu.Wait(true)
		r.emu.SetEndpointState(r.at("10.244.5.250").ID, hns.EndpointDegraded)
		found := 0
		for n := 1; n <= 5; n++ {
			time.Sleep(15 * time.Minute)
			begun := time.Now()
			if drift, err := r.backend.Audit(r.Context()); err != nil {
				r.Fatal(err)
			} else if drift > 0 && found == 0 {
				found = n
			}
			if took := time.Since(begun); took > 70*time.Second {
				r.Errorf("an audit took %s", took)
			}
		}
		if found == 0 || found > 4 {
			r.Errorf("found by audit %d", found)
		}
		r.sync()
		r.settle()
		// A reading on suspicion is not held up.
		r.driver.Doubt()
		begun := time.Now()
		r.audit()
		if took := time.Since(begun); took > time.Second {
			r.Errorf("an audit on suspicion took %s", took)
		}
	})
}

// A CNI plug-in deletes the endpoint of a pod that load balancers use: they are
// degraded, and HNS refuses to delete them since it does not find the endpoint
// (wcnscripts, findDegradedPolicies). That is not a load balancer that is gone. Where
// HNS can change them in place they serve what is left.
func TestALoadBalancerWhoseEndpointIsGone(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.emu.Behave(hnsemu.Behaviour{DeleteInUse: true, Degrades: true})
		web(r)
		r.emu.Remove(r.at("10.244.1.2").ID)
		r.set("web", "10.96.0.10", "10.244.2.2")
		r.audit()
		r.settle()
		r.serves("10.96.0.10", "10.244.2.2")
		r.gaps(0)
		r.audit()
		r.says("")
	})
	on(t, hnsemu.WS2022, func(r *rig) {
		r.emu.Behave(hnsemu.Behaviour{DeleteInUse: true, Degrades: true})
		web(r)
		lb := r.balancer("10.96.0.10")
		r.emu.Remove(r.at("10.244.1.2").ID)
		r.set("web", "10.96.0.10", "10.244.2.2")
		r.fails("restart HNS")
		r.audits("restart HNS")
		if r.balancer("10.96.0.10").ID != lb.ID {
			r.Error("it is another one")
		}
		r.says("1 load balancers are degraded")
		r.emu.Behave(hnsemu.Behaviour{}) // HNS was restarted
		r.settle()
		r.serves("10.96.0.10", "10.244.2.2")
		r.audit()
		r.says("")
		r.resume()
	})
}

// audits audits, and demands that the repair fails for this reason.
func (r *rig) audits(reason string) {
	r.Helper()
	time.Sleep(time.Until(r.backend.Next()))
	if _, err := r.backend.Audit(r.Context()); err != nil {
		r.Fatal(err)
	}
	r.fails(reason)
}
