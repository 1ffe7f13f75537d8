// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// hostMAC replaces the interface that has the node's address.
const hostMAC = "00-15-5d-aa-bb-cc"

// settings are those of the little world's node.
func settings() hns.Settings {
	return hns.Settings{MAC: func(addr) (string, error) { return hostMAC, nil }}
}

// overlay is the policies of an overlay network in the little world.
func overlay() []hns.Policy {
	return []hns.Policy{remoteSubnet("10.244.2.0/24", "192.0.2.2"), remoteSubnet("10.244.3.0/24", "192.0.2.3")}
}

func remoteSubnet(pods, node string) hns.Policy {
	return hns.Policy{
		Type:     hns.PolicyRemoteSubnet,
		Settings: []byte(`{"DestinationPrefix":"` + pods + `","IsolationId":4096,"ProviderAddress":"` + node + `"}`),
	}
}

// programmed writes objects into a fresh HNS, in which the pods of this node are,
// and returns it.
func programmed(t testing.TB, v hns.Version, kind string, c *hns.Compiler, objects map[hns.Key]hns.Value) *hnsemu.Emulator {
	e := hnsemu.New(v)
	network := e.AddNetwork("pods", kind, overlay()...)
	if kind == hns.TypeOverlay {
		e.AddEndpoint(hns.Endpoint{Name: "sourcevip", HostComputeNetwork: network, IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.1.254"}}})
	}
	pods := map[addr]bool{}
	for _, val := range objects {
		if val.Balancer == nil {
			continue
		}
		for _, target := range val.Balancer.Endpoints {
			if target.Local && !pods[target.Addr] {
				pods[target.Addr] = true
				e.AddPod(network, target.Addr.String())
			}
		}
	}
	d, err := hns.NewDriver(e.Client(), v, settings())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	read := func() map[hns.Key]hns.Value {
		have := map[hns.Key]hns.Value{}
		if err := d.Observe(context.Background(), func(k hns.Key, v hns.Value) { have[k] = v }); err != nil {
			t.Fatal(err)
		}
		return have
	}
	read()
	l := ledger.New[hns.Key, hns.Value](c)
	for k, val := range objects {
		l.Want(nil, k, val)
	}
	planned := l.Plan(epoch, 0)
	for batch := planned.Next(); batch != nil; batch = planned.Next() {
		if err := errors.Join(d.Commit(context.Background(), batch)...); err != nil {
			t.Error(err)
		}
	}
	compare(t, c, objects, read())
	return e
}

// compare demands that exactly these objects are there.
func compare(t testing.TB, c *hns.Compiler, want, have map[hns.Key]hns.Value) {
	t.Helper()
	for k, v := range want {
		if got, ok := have[k]; !ok {
			t.Errorf("%s is not there", k)
		} else if !c.Equal(got, v) {
			t.Errorf("%s is %+v %+v, want %+v %+v", k, got, got.Balancer, v, v.Balancer)
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			t.Errorf("%s is left over", k)
		}
	}
}

// sim programs objects and returns the model of the switch over them.
func sim(t testing.TB, v hns.Version, kind string, c *hns.Compiler) func(map[hns.Key]hns.Value, *model.Host) func(oracle.Packet) oracle.Outcome {
	return func(objects map[hns.Key]hns.Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
		e := programmed(t, v, kind, c, objects)
		if err := e.Check(); err != nil {
			t.Error(err)
		}
		return hnsemu.VFP{HNS: e, Host: host, Uplink: conformance.Uplink}.Decide
	}
}
