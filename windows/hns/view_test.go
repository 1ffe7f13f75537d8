// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// look looks at HNS while the proxy is at work, and demands that this changes
// nothing.
func (r *rig) look() *hns.View {
	r.Helper()
	before, err := os.ReadFile(r.settings.Journal)
	if err != nil {
		r.Fatal(err)
	}
	writes := r.emu.Writes()
	c := config.Default()
	c.Windows.DSR = r.options.ClientDSR
	v, err := hns.Look(r.Context(), r.emu.Client(), &c, r.settings)
	if err != nil {
		r.Fatal(err)
	}
	if after, _ := os.ReadFile(r.settings.Journal); string(after) != string(before) || r.emu.Writes() != writes {
		r.Error("looking has changed something")
	}
	return v
}

// differs demands these differences ("state object", a line each).
func (r *rig) differs(want ...string) {
	r.Helper()
	var ports []*model.Port
	for _, p := range r.ports {
		ports = append(ports, p)
	}
	var got []string
	for _, c := range r.look().Diff(r.host, ports).Changes {
		got = append(got, fmt.Sprintf("%s %s", c.State, c.Object))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		r.Errorf("differences:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestDiff(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.differs()
		lb := r.balancer("10.96.0.10")
		r.emu.Remove(lb.ID)
		r.differs("missing load balancer 10.96.0.10:80/tcp", "lost load balancer "+lb.ID)
		other := r.emu.AddBalancer(lb, false) // as another program makes it
		r.differs("foreign load balancer 10.96.0.10:80/tcp", "lost load balancer "+lb.ID)
		r.emu.Remove(other)
		r.audit()
		r.differs()
		r.emu.Change(r.balancer("10.96.0.11").ID, func(lb *hns.LoadBalancer) { lb.Flags = 0 })
		r.differs("differs load balancer 10.96.0.11:80/tcp")
		delete(r.ports, "web")
		r.differs("differs load balancer 10.96.0.11:80/tcp", "left load balancer 10.96.0.10:80/tcp")
		r.ports["new"] = port("new", "10.96.0.12", "10.244.2.9")
		r.differs("missing remote endpoint 10.244.2.9", "differs load balancer 10.96.0.11:80/tcp",
			"missing load balancer 10.96.0.12:80/tcp", "left load balancer 10.96.0.10:80/tcp")
	})
}

func TestDiffOfAnOverlay(t *testing.T) {
	onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
		web(r)
		r.differs()
		for _, e := range r.emu.Endpoints() {
			if e.Name == "tandem-vip_10.96.0.10" {
				r.emu.Remove(e.ID)
			}
		}
		r.differs("missing VIP endpoint 10.96.0.10")
	})
}

func TestDump(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.others("10.96.0.99")
		r.emu.AddEndpoint(hns.Endpoint{
			Name: "ill", HostComputeNetwork: r.network, State: hns.EndpointDegraded, Health: hns.Health{LastErrorCode: 0x803b0013},
			IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.1.78"}},
		})
		web(r)
		d := r.look().Dump()
		if i := d.Objects[3]; !strings.Contains(i.Detail, "ill (degraded) (last error: exists already") {
			r.Errorf("%+v", i)
		}
		var got []string
		for _, i := range d.Objects {
			got = append(got, i.Owner+" "+i.Object)
		}
		want := []string{
			"pod endpoint 10.244.1.2", "pod endpoint 10.244.1.3", "pod endpoint 10.244.1.77", "pod endpoint 10.244.1.78",
			"tandem remote endpoint 10.244.2.2", "tandem remote endpoint 10.244.2.3",
			"tandem load balancer 10.96.0.10:80/tcp", "tandem load balancer 10.96.0.11:80/tcp", "another load balancer 10.96.0.99:80/tcp",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			r.Errorf("dump:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if d.WithoutDSR != 1 || d.Version != "15.5" || d.Network != "pods" {
			r.Errorf("%+v", d)
		}
		if text, err := json.Marshal(d); err != nil || !strings.Contains(string(text), `"owner":"another"`) {
			r.Errorf("%s, %v", text, err)
		}
	})
}

func TestALookAtAnHNSThatIsDown(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Down(true)
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		c := config.Default()
		if _, err := hns.Look(ctx, r.emu.Client(), &c, r.settings); err == nil || !strings.Contains(err.Error(), "HNS is unavailable") {
			r.Errorf("got %v", err)
		}
		r.emu.Down(false)
	})
}
