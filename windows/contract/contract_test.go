// SPDX-License-Identifier: Apache-2.0

package contract_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/windows/contract"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/hns/dll"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// machines are the versions of Windows whose HNS is emulated.
var machines = map[string]hns.Version{
	"10.0.17763.1": hnsemu.WS2019, "10.0.19041.1": hnsemu.WS2004, "10.0.20348.1": hnsemu.WS2022,
	"10.0.26100.1": hnsemu.WS2025RT, "10.0.26100.2": hnsemu.WS2025,
}

// service restarts an emulator.
type service struct{ e *hnsemu.Emulator }

func (s service) Stop() error  { s.e.Down(true); return nil }
func (s service) Start() error { s.e.Down(false); return nil }

// vswitch sends packets through the emulator's model of the switch.
type vswitch struct{ e *hnsemu.Emulator }

func (s vswitch) Send(from contract.Origin, frontend string) string {
	node := netip.MustParseAddr("192.0.2.1")
	p := oracle.Packet{Src: node, Proto: model.TCP}
	if from == contract.FromOutside {
		p.Src, p.Iface = netip.MustParseAddr("203.0.113.7"), "uplink"
	}
	if strings.HasPrefix(frontend, ":") {
		frontend = node.String() + frontend
	}
	p.Dst = netip.MustParseAddrPort(frontend)
	out := hnsemu.VFP{HNS: s.e, Host: &model.Host{IPs: []netip.Addr{node}}, Uplink: "uplink"}.Decide(p)
	switch {
	case out.Fate == oracle.Pass:
		return contract.Passed
	case out.Endpoints[0].SNAT:
		return contract.SeesSource
	}
	return contract.SeesClient
}

// listener is a process of an emulator's machine that has a TCP port.
type listener struct{ e *hnsemu.Emulator }

func (l listener) Close() error {
	l.e.Hold(nil)
	return nil
}

func listening(e *hnsemu.Emulator) func(int) (io.Closer, error) {
	return func(port int) (io.Closer, error) {
		e.Hold(func(p uint16) bool { return int(p) == port })
		return listener{e}, nil
	}
}

// run asks an HNS on an emulator everything.
func run(t *testing.T, windows string, e *hnsemu.Emulator, h contract.HNS) contract.Report {
	t.Helper()
	r, err := contract.Run(t.Context(), h, contract.Options{
		Tandem: "test", Windows: windows, Adapter: "Ethernet", Service: service{e}, Switch: vswitch{e}, Listen: listening(e),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// empty demands that nothing is left of a run.
func empty(t *testing.T, e *hnsemu.Emulator) {
	t.Helper()
	networks, err := e.Client().Networks()
	if err != nil || len(networks)+len(e.Endpoints())+len(e.Balancers()) > 0 {
		t.Errorf("left: %v, %v, %v (%v)", networks, e.Endpoints(), e.Balancers(), err)
	}
	if n := e.Handles(); n > 0 {
		t.Errorf("%d handles are open", n)
	}
}

// Each emulated version answers every experiment as expected, and nothing is left.
func TestTheEmulatorKeepsTheContract(t *testing.T) {
	asked := map[string]bool{}
	for windows, v := range machines {
		e := hnsemu.New(v)
		r := run(t, windows, e, e)
		for _, x := range r.Results {
			switch {
			case x.Verdict == contract.Expected:
				asked[x.ID] = true
			case x.Verdict == contract.Different || x.Expected != "":
				t.Errorf("%s: %s on %s: %s: %q, expected %q", v, x.ID, x.Network, x.Verdict, x.Found, x.Expected)
			}
		}
		if len(r.Left) > 0 || r.Ended != "" || r.HNS != v.String() {
			t.Errorf("%s: HNS %s, left %q, ended %q", v, r.HNS, r.Left, r.Ended)
		}
		empty(t, e)
		t.Logf("Windows %s, HNS %s: %d as expected, %d do not arise, %d calls", windows, v, r.Count(contract.Expected), r.Count(contract.NotRun), r.Calls)
	}
	ids := map[string]bool{}
	for _, x := range contract.All() {
		if ids[x.ID] || !strings.Contains(x.ID, "/") || x.Asks == "" || x.Source == "" {
			t.Errorf("%q is asked twice, or has no rule, no question or no source", x.ID)
		}
		if ids[x.ID] = true; !asked[x.ID] {
			t.Errorf("%s does not arise in any version", x.ID)
		}
	}
}

// An HNS that behaves otherwise is found to.
func TestDifferencesAreFound(t *testing.T) {
	for behaviour, want := range map[*hnsemu.Behaviour]map[string]string{
		{Twins: true}:                       {"twins/remote": "ok", "twins/local": "ok"},
		{DeleteInUse: true, Degrades: true}: {"in-use/endpoint": "ok", "lost-endpoint/state": "4; deletion 0x803b0002"},
		{Exists: 0xb7}:                      {"one-frontend/same": "0xb7", "one-frontend/node-port": "0xb7", "one-frontend/one-of-two": "0xb7"},
		{DeleteLies: true}: { // and what it leaves is found by filters
			"delete-lies/ten": "it still exists, in round 1", "filters/name": "1 of 2, and others", "filters/network": "2 of 2, and others",
		},
		{DeleteFailsOnce: true}: {"delete-fails/ten": "0x1f, in round 1"},
		{StaleHandle: 0x6be}:    {"handles/restart": "0x6be"},
		{PortStays: true}:       {"port-stays/vip": "0x803b0013", "port-stays/node-port": "0x803b0013"}, // and no other is in the way
		{Echo: hnsemu.DropExternal}: {
			"drops-external/node-port": "2", "drops-external/vip": "0", "modify/keeps": "PortMappings Flags absent",
			"external/with": contract.Passed, "dsr/without": contract.Passed, "node-ports/from-outside": contract.Passed,
		},
		{Echo: hnsemu.Normalise}: {
			"normalises/plain": "PortMappings DistributionType 4", "normalises/affinity": "PortMappings DistributionType 6",
			"normalises/dsr": "PortMappings DistributionType 4, SourceVIP absent", "modify/keeps": "PortMappings DistributionType 4, SourceVIP absent",
			"given-id/balancer": "PortMappings DistributionType 4", "extra-settings/balancer-order": "PortMappings DistributionType 4", "extra-settings/balancer-name": "Name absent, Owner absent, PortMappings DistributionType 4",
		},
	} {
		e := hnsemu.New(hnsemu.WS2025)
		e.Behave(*behaviour)
		found := map[string]string{}
		for _, x := range run(t, "10.0.26100.2", e, e).Results {
			if x.Network == hns.TypeL2Bridge && x.Verdict == contract.Different {
				found[x.ID] = x.Found
			}
		}
		if !maps.Equal(found, want) {
			t.Errorf("%+v: %v, want %v", *behaviour, found, want)
		}
	}
}

// A run leaves nothing, whichever of its calls fails; what it could not delete it says,
// and the next run deletes it.
func TestNothingIsLeftWhenACallFails(t *testing.T) {
	e := hnsemu.New(hnsemu.WS2022)
	total := run(t, "10.0.20348.1", e, e).Calls
	for n := 2; n <= total; n += 41 {
		e := hnsemu.New(hnsemu.WS2022)
		calls := 0
		e.Hook(func(*hnsemu.Call) hns.Code {
			if calls++; calls == n {
				return 0x57
			}
			return 0
		})
		r := run(t, "10.0.20348.1", e, e)
		if left := len(e.Endpoints()) + len(e.Balancers()); left > 0 && len(r.Left) == 0 {
			t.Errorf("call %d fails: %d objects are left, and the report does not say so", n, left)
		}
		run(t, "10.0.20348.1", e, e)
		if t.Failed() || len(e.Endpoints())+len(e.Balancers()) > 0 {
			t.Fatalf("call %d fails, %v, and the next run leaves %v, %v", n, r.Left, e.Endpoints(), e.Balancers())
		}
	}
}

// An interrupted run deletes what it made, and says that it was interrupted. So does one
// in which a call hangs as far as HNS lets it.
func TestARunEnds(t *testing.T) {
	e := hnsemu.New(hnsemu.WS2022)
	ctx, cancel := context.WithCancel(t.Context())
	e.Hook(func(c *hnsemu.Call) hns.Code {
		if c.Kind == hnsemu.LoadBalancer && c.Verb == hnsemu.Create {
			cancel()
		}
		return 0
	})
	r, err := contract.Run(ctx, e, contract.Options{Windows: "10.0.20348.1"})
	if err != nil || r.Ended != "the run was interrupted" || r.Count(contract.Expected) == 0 || r.Count(contract.NotRun) < 20 {
		t.Errorf("%v, %+v", err, r)
	}
	empty(t, e)

	synctest.Test(t, func(t *testing.T) {
		e := hnsemu.New(hnsemu.WS2022)
		hang := make(chan struct{})
		e.Hook(func(c *hnsemu.Call) hns.Code {
			if c.Kind == hnsemu.LoadBalancer && c.Verb == hnsemu.Create {
				<-hang
			}
			return 0
		})
		began := time.Now()
		r := run(t, "10.0.20348.1", e, e)
		if took := time.Since(began); took > 2*time.Minute || r.Ended != "HcnCreateLoadBalancer has not returned within 1m0s" {
			t.Errorf("after %s: %q", took, r.Ended)
		}
		close(hang)
		e.Hook(nil)
		run(t, "10.0.20348.1", e, e)
		if len(e.Endpoints()) > 0 {
			t.Errorf("the next run leaves %v", e.Endpoints())
		}
	})
}

// wrapped changes what an HNS is asked and answers.
type wrapped struct {
	contract.HNS
	ask    func(*dll.Request)
	answer func(dll.Request, *dll.Response)
}

func (w wrapped) Do(r dll.Request) dll.Response {
	if w.ask != nil {
		w.ask(&r)
	}
	out := w.HNS.Do(r)
	if w.answer != nil {
		w.answer(r, &out)
	}
	return out
}

// Objects of others stay, even if HNS ignores the filters by which a run finds its own
// ones.
func TestOthersObjectsStay(t *testing.T) {
	e := hnsemu.New(hnsemu.WS2025)
	network := e.AddNetwork("cbr0", hns.TypeL2Bridge)
	pod := e.AddPod(network, "10.244.1.2")
	e.AddBalancer(hns.LoadBalancer{HostComputeEndpoints: []string{pod}, FrontendVIPs: []string{"10.96.0.10"}, PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 80}}}, true)
	before := fmt.Sprint(e.Endpoints(), e.Balancers())
	run(t, "10.0.26100.2", e, wrapped{HNS: e, ask: func(r *dll.Request) {
		if r.Verb == dll.Enumerate {
			r.Text = ""
		}
	}})
	after := fmt.Sprint(e.Endpoints(), e.Balancers())
	networks, err := e.Client().Networks()
	if err != nil || len(networks) != 1 || before != after {
		t.Errorf("%v %v\nbefore %s\nafter  %s", networks, err, before, after)
	}
	if err := e.Check(); err != nil {
		t.Error(err)
	}
}

// A report has nothing of what HNS writes of itself, of adapters or of other objects.
func TestAReportHasNothingOfTheUsers(t *testing.T) {
	const secret = "CONTOSO"
	e := hnsemu.New(hnsemu.WS2025)
	e.AddNetwork(secret, hns.TypeL2Bridge)
	e.Hook(func(c *hnsemu.Call) hns.Code {
		if c.Verb == hnsemu.Create && strings.Contains(c.Text, `"Domain"`) {
			return 0x57
		}
		return 0
	})
	h := wrapped{HNS: e, answer: func(r dll.Request, out *dll.Response) {
		if out.Record != "" {
			out.Record = strings.Replace(out.Record, "refused", "refused by "+secret, 1)
		}
		var o map[string]any
		if r.Verb != dll.Query || json.Unmarshal([]byte(out.Text), &o) != nil {
			return
		}
		for name := range o { // but for what the run finds its own objects by
			if s, ok := o[name].(string); ok && !slices.Contains([]string{"ID", "Name", "HostComputeNetwork"}, name) {
				o[name] = s + secret
			}
		}
		o["Extra"], o["SourceVIP"] = map[string]any{"Host": secret}, secret
		if m, ok := o["IpConfigurations"].([]any); ok && len(m) > 0 {
			m[0].(map[string]any)["IpAddress"] = secret
		}
		b, _ := json.Marshal(o)
		out.Text = string(b)
	}}
	r, err := contract.Run(t.Context(), h, contract.Options{Windows: "10.0.26100.2", Adapter: secret})
	text, err2 := json.Marshal(r)
	if err != nil || err2 != nil || bytes.Contains(text, []byte(secret)) || r.Count(contract.Different) < 3 {
		t.Errorf("%v %v\n%s", err, err2, text)
	}
	if bytes.Contains(text, []byte("tandem-test")) || bytes.Contains(text, []byte("198.1")) {
		t.Errorf("names or addresses:\n%s", text)
	}
}

// A report is read and judged by what this Tandem expects; what it is not is refused.
func TestCompare(t *testing.T) {
	e := hnsemu.New(hnsemu.WS2022)
	e.Behave(hnsemu.Behaviour{Exists: 0xb7})
	r := run(t, "10.0.20348.1", e, e)
	for i := range r.Results { // as of a Tandem that expected something else
		r.Results[i].Expected, r.Results[i].Source = "another", "another"
	}
	r.Results = append(r.Results, contract.Result{ID: "of/another-tandem", Verdict: contract.Expected})
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	read, err := contract.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	judged, err := contract.Compare(read)
	if err != nil || judged.Count(contract.Different) != 6 || len(judged.Results) != len(r.Results)-1 {
		t.Errorf("%v: %d differ, %d results of %d", err, judged.Count(contract.Different), len(judged.Results), len(r.Results))
	}
	for _, bad := range []string{"", "{}", "[]", `{"apiVersion":"` + contract.APIVersion + `","hns":"new"}`, strings.Repeat(" ", 5<<20)} {
		if _, err := contract.Read(strings.NewReader(bad)); err == nil {
			t.Errorf("%.40q is a report", bad)
		}
	}
}

// The guides show the last line of a run as it is where HNS behaves as expected.
func TestTheGuidesShowARun(t *testing.T) {
	const windows = "10.0.20348.2527"
	e := hnsemu.New(hnsemu.WS2022)
	r, err := contract.Run(t.Context(), e, contract.Options{Windows: windows, Listen: listening(e)})
	if err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("Windows %s, HNS %s: %d as expected, %d different, %d not run; %d calls", windows, r.HNS,
		r.Count(contract.Expected), r.Count(contract.Different), r.Count(contract.NotRun), r.Calls)
	for _, guide := range []string{"../../core/manual/pages/quickstart.md", "../../.github/CONTRIBUTING.md"} {
		text, err := os.ReadFile(guide)
		if err != nil || !strings.Contains(string(text), line) {
			t.Errorf("%s does not have (%v): %s", guide, err, line)
		}
	}
}

// A report of a real machine makes the emulator answer like it.
func TestAReportDrivesTheEmulator(t *testing.T) {
	seen := map[string]string{
		"one-frontend/same": "0xb7", "needs-mapping/none": "0x57", "bad-json/balancer": "0x803b001b", "twins/remote": "ok",
		"bad-address/outside": "0x803b001e", "in-use/endpoint": "ok", "drops-external/node-port": "2", "endpoints-exist/absent": "0x803b002a",
		"not-found/delete-network": "0x490", "given-id/endpoint-in-use": "0x1392", "held-port/listener": "0x20", "port-stays/vip": "0x803b0013",
	}
	var r contract.Report
	for id, found := range seen {
		r.Results = append(r.Results, contract.Result{ID: id, Network: "NAT", Verdict: contract.Different, Found: found})
	}
	r.Results = append(r.Results, contract.Result{ID: "twins/local", Verdict: contract.NotRun, Found: "the network could not be created: 0x1"})
	e := hnsemu.New(hnsemu.WS2022)
	e.Learn(r)
	for _, x := range run(t, "10.0.20348.1", e, e).Results {
		if want, ok := seen[x.ID]; ok && x.Found != want {
			t.Errorf("%s: %q, the report has %q", x.ID, x.Found, want)
		}
		if x.ID == "twins/local" && x.Verdict != contract.Expected {
			t.Errorf("what was not run has changed the emulator: %+v", x)
		}
	}
}

// Where a report of a real machine is kept, the emulator of that version answers as it
// does: each line here is something to mend in the emulator.
func TestReports(t *testing.T) {
	kept, err := hnsemu.Kept()
	if err != nil {
		t.Fatal(err)
	}
	for file, r := range kept {
		v, err := r.Version()
		if err != nil {
			t.Fatal(file, err)
		}
		seen := map[string]string{}
		for _, x := range r.Results {
			if x.Verdict != contract.NotRun {
				seen[x.ID] = x.Found // of the last network
			}
		}
		e := hnsemu.New(v)
		for _, x := range run(t, r.Windows, e, e).Results {
			if found, ok := seen[x.ID]; ok && x.Verdict != contract.NotRun && found != x.Found {
				t.Errorf("%s: %s: a real HNS answers %q, the emulator %q", file, x.ID, found, x.Found)
			}
		}
	}
	t.Logf("%d reports of real machines", len(kept))
}
