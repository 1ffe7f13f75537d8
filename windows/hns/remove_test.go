// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"errors"
	"os"
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
