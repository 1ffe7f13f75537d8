// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// leftBy ends the proxy and removes what it has left, as cleanup does.
func (r *rig) leftBy() error {
	r.Helper()
	if err := r.backend.Close(); err != nil {
		r.Fatal(err)
	}
	return hns.Remove(r.Context(), r.emu.Client(), r.settings)
}

// foreign adds a load balancer that is not ours, on a network of its own.
func (r *rig) foreign() (id string) {
	return r.emu.AddBalancer(hns.LoadBalancer{
		HostComputeEndpoints: []string{r.emu.AddPod(r.emu.AddNetwork("another", hns.TypeL2Bridge), "10.244.9.77")},
		FrontendVIPs:         []string{"10.96.0.99"}, PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 1, ExternalPort: 80}},
	}, true)
}

// Everything of ours goes and nothing else, with the network of the pods, beside
// others, and without it.
func TestRemove(t *testing.T) {
	for _, gone := range []bool{false, true} {
		on(t, hnsemu.WS2025, func(r *rig) {
			displaced := r.displaced()
			web(r)
			foreign := r.foreign()
			if gone {
				r.emu.RemoveNetwork(r.network)
			}
			start := time.Now()
			if err := r.leftBy(); err != nil {
				r.Fatal(err)
			}
			if bs := r.emu.Balancers(); len(bs) != 1 || bs[0].ID != foreign || r.remotes() != "" {
				r.Errorf("left: %v, %s", bs, r.remotes())
			}
			if d := time.Since(start); d > 0 {
				r.Errorf("it waited for %v", d)
			}
			if err := r.leftBy(); err != nil {
				r.Errorf("once more: %v", err)
			}
			if n := displaced(); n != 0 {
				r.Errorf("%d of its own are logged as those of another program", n)
			}
		})
	}
}

// kube-proxy serves again, and has begun with the deletion of all load balancers. What it found of
// our endpoints it uses, as it knows them by their addresses, and would not miss: remote
// ones, those of cluster IPs, and that of the source VIP stay. The rest goes, and the
// cleanup succeeds.
func TestRemoveBesideKubeProxy(t *testing.T) {
	onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
		var log bytes.Buffer
		r.settings.SourceVIP, r.settings.Log = netip.Addr{}, slog.New(slog.NewTextHandler(&log, nil))
		r.restart()
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.set("api", "10.96.0.11", "10.244.3.3")
		r.begin()
		for _, lb := range r.emu.Balancers() {
			r.emu.Remove(lb.ID)
		}
		lb := hns.LoadBalancer{
			HostComputeEndpoints: []string{strings.ToUpper(r.endpoint("tandem_10.244.2.2").ID)}, FrontendVIPs: []string{"10.96.0.10"},
			PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80}}, SourceVIP: r.endpoint("tandem-source-vip").IpConfigurations[0].IpAddress,
		}
		foreign := r.emu.AddBalancer(lb, true)
		r.emu.Behave(hnsemu.Behaviour{DeleteInUse: true})
		if err := r.leftBy(); err != nil {
			r.Fatal(err)
		}
		var left []string
		for _, e := range r.emu.Endpoints() {
			if strings.HasPrefix(e.Name, "tandem") {
				left = append(left, e.Name)
			}
		}
		slices.Sort(left)
		if want := []string{"tandem-source-vip", "tandem-vip_10.96.0.10", "tandem_10.244.2.2"}; !slices.Equal(left, want) {
			r.Errorf("left: %v, want %v", left, want)
		}
		if !strings.Contains(log.String(), "count=3") {
			r.Errorf("not reported:\n%s", log.String())
		}
		r.emu.Remove(foreign)
		if err := r.leftBy(); err != nil || len(r.emu.Endpoints()) != 2 {
			r.Errorf("once kube-proxy's are gone: %v, %v", err, r.emu.Endpoints())
		}
	})
}

// What cannot be read or deleted is an error, and is ours also the next time.
func TestRemoveFails(t *testing.T) {
	for call, code := range map[string]hns.Code{
		"HcnOpenLoadBalancer": notFound, "HcnDeleteLoadBalancer": serverGone, "HcnEnumerateNetworks": serverGone, "HcnDeleteEndpoint": serverGone,
	} {
		on(t, hnsemu.WS2025, func(r *rig) {
			web(r)
			r.refuse(call, code, -1)
			if err := r.leftBy(); err == nil {
				r.Errorf("%s: no error", call)
			}
			r.emu.Hook(nil)
			if err := r.leftBy(); err != nil || len(r.emu.Balancers()) > 0 || r.remotes() != "" {
				r.Errorf("%s: %v; left: %v, %s", call, err, r.emu.Balancers(), r.remotes())
			}
		})
	}
}

// HNS that is down is waited for, and one that does not come back is an error. A
// system without HNS has nothing of ours.
func TestRemoveWithoutHNS(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Down(true)
		start := time.Now()
		if err := r.leftBy(); err == nil || !strings.Contains(err.Error(), "HNS is unavailable") || time.Since(start) > time.Minute {
			r.Errorf("after %v: %v", time.Since(start), err)
		}
		r.emu.Down(false)
		served(r)
		r.refuse("HNSCall", 0x7e, -1)
		if err := r.leftBy(); !errors.Is(err, dataplane.ErrAbsent) {
			r.Errorf("got %v", err)
		}
		r.emu.Hook(nil)
		served(r)
		if text, err := os.ReadFile(r.settings.Journal); err != nil || strings.Count(string(text), "lb ") != 2 {
			r.Errorf("the journal (%v):\n%s", err, text)
		}
	})
}
