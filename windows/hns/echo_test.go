// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"bytes"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// echoing runs a test on HNSs that return other settings than they were given:
// without VipExternalIP (calico#7305), and with a source VIP and a distribution of
// their own.
func echoing(t *testing.T, v hns.Version, test func(*rig)) {
	for _, echo := range []func(*hns.LoadBalancer){hnsemu.DropExternal, hnsemu.Normalise} {
		on(t, v, func(r *rig) {
			r.emu.Behave(hnsemu.Behaviour{Echo: echo})
			r.ports["web"] = public("", "203.0.113.1:80", "10.244.2.2:8080", 0)
			r.ports["api"] = port("api", "10.96.0.11", "10.244.2.2 10.244.2.3")
			r.begin()
			r.emu.Forget()
			test(r)
		})
	}
}

// What HNS returned is what it is compared with: audits and restarts find no drift
// and write nothing.
func TestAnEchoIsNoDrift(t *testing.T) {
	echoing(t, hnsemu.WS2019, func(r *rig) {
		for range 2 {
			if drift := r.audit(); drift != 0 {
				r.Errorf("drift: %d", drift)
			}
			r.differs()
			r.resume()
			r.gaps(0)
		}
	})
}

// A change behind our back is drift still, and an HNS that forgets the journal's
// echo makes load balancers again once.
func TestDriftBesideAnEcho(t *testing.T) {
	echoing(t, hnsemu.WS2019, func(r *rig) {
		lb := r.balancer("203.0.113.1")
		r.emu.Change(lb.ID, func(lb *hns.LoadBalancer) { lb.PortMappings[0].InternalPort = 1 })
		if drift := r.audit(); drift != 1 {
			r.Errorf("drift: %d", drift)
		}
		if got := r.balancer("203.0.113.1"); got.PortMappings[0].InternalPort != 8080 {
			r.Errorf("%+v", got)
		}
		if err := os.Remove(r.settings.Journal); err != nil {
			r.Fatal(err)
		}
		for range 2 {
			r.restart()
			r.begin()
		}
		r.unwritten()
	})
}

// Endpoints change in place all the same, as often as they like: the journal stays
// small, and is right after a restart.
func TestAModifyWithAnEcho(t *testing.T) {
	echoing(t, hnsemu.WS2025, func(r *rig) {
		for i := range 3000 {
			pod := []string{"10.244.2.2:8080", "10.244.2.3:8080"}[i%2]
			p := public("", "203.0.113.1:80", pod, 0)
			r.replace("web", p)
			r.sync()
		}
		r.serves("203.0.113.1", "10.244.2.3")
		r.gaps(0)
		if n := r.emu.Calls("HcnModifyLoadBalancer"); n != 2999 {
			r.Errorf("Modify was called %d times", n)
		}
		if info, err := os.Stat(r.settings.Journal); err != nil || info.Size() > 3<<19 {
			r.Errorf("the journal has %d bytes, %v", info.Size(), err)
		}
		r.resume()
	})
}

// The switch has lost a load balancer's rules: HNS states that it is degraded. It is
// made again, but not again and again where that does not help.
func TestADegradedLoadBalancer(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		lb := r.balancer("10.96.0.10")
		r.emu.Degrade(lb.ID, hns.StateDegraded)
		r.differs("differs load balancer 10.96.0.10:80/tcp")
		if d := r.look().Dump(); d.Degraded != 1 {
			r.Errorf("%d are degraded", d.Degraded)
		}
		if drift, err := r.backend.Audit(r.Context()); drift != 1 || err != nil {
			r.Errorf("drift: %d, %v", drift, err)
		}
		if said := problems(r.driver); !strings.Contains(said, "load balancers are degraded") {
			r.Errorf("it says %q", said)
		}
		r.sync()
		if said := problems(r.driver); said != "" {
			r.Errorf("it is in order again, and it says %q", said)
		}
		if r.balancer("10.96.0.10").ID == lb.ID {
			r.Error("it is the same still")
		}
		r.differs()
		served(r)
	})
}

// A pod's endpoint loses its port of the switch while the proxy runs, and is repaired:
// each audit states what is so then.
func TestAnEndpointThatDegradesLater(t *testing.T) {
	on(t, hnsemu.WS2022, func(r *rig) {
		web(r)
		pod := r.emu.AddPod(r.network, "10.244.1.9")
		for _, state := range []hns.Condition{2, hns.EndpointDegraded, 2} {
			r.emu.SetEndpointState(pod, state)
			if drift := r.audit(); drift != 0 {
				r.Errorf("state %d: drift %d", state, drift)
			}
			if said := strings.Contains(problems(r.driver), "endpoints of pods are degraded"); said != (state == hns.EndpointDegraded) {
				r.Errorf("state %d: said is %t", state, said)
			}
		}
	})
}

// The log has the time of each call, by the kinds that the script for real nodes sums up.
func TestTheLogHasTheTimeOfEachKindOfCall(t *testing.T) {
	script, err := os.ReadFile("../../ci/wine/smoke.ps1")
	if err != nil {
		t.Fatal(err)
	}
	kinds := regexp.MustCompile(`foreach \(\$kind in (.*)\) \{`).FindStringSubmatch(string(script))
	if kinds == nil {
		t.Fatal("the script has no kinds of calls")
	}
	on(t, hnsemu.WS2025, func(r *rig) {
		var log bytes.Buffer
		r.settings.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		r.restart()
		web(r)
		r.audit()
		r.unset("web")
		r.unset("api")
		r.sync()
		r.settle()
		all := strings.Split(kinds[1], ", ")
		if len(all) < 9 {
			r.Errorf("%d kinds", len(all))
		}
		for _, kind := range all {
			if !regexp.MustCompile(`msg="HNS call" call="` + strings.Trim(kind, `"`) + `.*" ms=\d+`).MatchString(log.String()) {
				r.Errorf("no %s in the log", kind)
			}
		}
	})
}

// Endpoints without a port of the switch, and load balancers that serve nothing.
func TestDegradedObjectsOfOthers(t *testing.T) {
	on(t, hnsemu.WS2022, func(r *rig) {
		r.emu.AddEndpoint(hns.Endpoint{
			Name: "pod", HostComputeNetwork: r.network, State: hns.EndpointDegraded, IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.1.9"}},
		})
		r.emu.AddBalancer(hns.LoadBalancer{HostComputeEndpoints: []string{r.emu.Endpoints()[0].ID}, FrontendVIPs: []string{"10.96.0.99"}}, true)
		web(r)
		said := problems(r.driver)
		for _, what := range []string{"endpoints of pods are degraded", "without port mappings"} {
			if !strings.Contains(said, what) {
				r.Errorf("no %q in %q", what, said)
			}
		}
	})
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for code, fix := range map[hns.Code]string{
		0x803b0013: "netstat", 0x803b000d: "without endpoints", 0x803b001e: "subnet", 0x803b002f: "address", 0x803b0017: "degraded",
		0x803b001c: "without endpoints", 0x803b0007: "virtual switch",
	} {
		if s := (&hns.Error{Call: "HcnCreateLoadBalancer", Code: code}).Error(); !strings.Contains(s, fix) {
			t.Errorf("%s: no %q", s, fix)
		}
	}
}

// SCTP is not served by HNS' load balancers.
func TestSCTPIsAGap(t *testing.T) {
	p := port("web", "10.96.0.10", "10.244.2.2")
	p.ID.Proto = model.SCTP
	var objects int
	gaps := hns.NewCompiler(hns.Newest()).Port(node, p, func(hns.Key, hns.Value) { objects++ })
	if objects > 0 || len(gaps) != 1 || !strings.Contains(gaps[0].Detail, "SCTP") {
		t.Errorf("%d objects, gaps %v", objects, gaps)
	}
}
