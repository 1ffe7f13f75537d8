// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// writes is a data plane that is looked at after each op.
type writes struct {
	*memory.Driver[Key, Value]
	look func(ledger.Op[Key, Value])
}

func (w *writes) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) (errs []error) {
	for i, op := range ops {
		errs = append(errs, w.Driver.Commit(ctx, ops[i:i+1])...)
		if w.look != nil {
			w.look(op)
		}
	}
	return errs
}

// state is a state of a Service; the zero state is that there is none.
type state struct {
	there     bool
	external  model.TrafficPolicy
	balanced  bool   // it has a load balancer IP
	endpoints string // digits: the first ones are on this node
}

func (s state) port(t *testing.T, host *model.Host) *model.Port {
	if !s.there {
		return nil
	}
	name := model.ServiceName{Namespace: "default", Name: "web"}
	svc := &model.Service{
		Name: name, Type: model.NodePort, External: s.external, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 80, NodePort: 30080}},
	}
	if s.balanced {
		svc.Type, svc.LoadBalancerIPs = model.LoadBalancer, []netip.Addr{netip.MustParseAddr("203.0.113.10")}
		svc.Restricted, svc.SourceRanges = true, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	}
	slice := &model.Slice{Name: model.SliceName{Namespace: "default", Name: "web-1"}, Service: "web", Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}}
	for _, n := range s.endpoints {
		e := model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 2, byte(n)}), Node: "node-2", State: model.Ready | model.Serving}
		if n < '5' {
			e.Addr, e.Node = netip.AddrFrom4([4]byte{10, 244, 1, byte(n)}), host.Name
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	r := resolve.Service(host, svc, []*model.Slice{slice})
	if len(r.Ports) != 1 || len(r.Problems) > 0 {
		t.Fatalf("%+v: %v %v", s, r.Ports, r.Problems)
	}
	return r.Ports[0]
}

// No write of any change of a Service takes a client to endpoints that policy leaves out before
// and after it, nor does one leave a client without that has some before and after.
func TestEachWriteOfAChange(t *testing.T) {
	states := []state{{}}
	for _, external := range model.TrafficPolicies() {
		for _, endpoints := range []string{"", "1", "6", "16", "7"} {
			for _, balanced := range []bool{false, true} {
				states = append(states, state{true, external, balanced, endpoints})
			}
		}
	}
	host := &model.Host{
		Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
		Pods:      model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
		NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
	}
	var packets []oracle.Packet
	for _, to := range []string{"10.96.0.10:80", "203.0.113.10:80", "192.0.2.1:30080", "192.0.2.2:30080"} {
		for src, device := range map[string]string{"198.51.100.7": "eth0", "10.244.1.77": "veth0", "192.0.2.1": ""} {
			packets = append(packets, oracle.Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddrPort(to), Proto: model.TCP, Iface: device})
		}
	}
	c := NewCompiler(Options{})
	for _, before := range states {
		for _, after := range states {
			if before == after {
				continue
			}
			t.Run(fmt.Sprintf("%+v to %+v", before, after), func(t *testing.T) {
				w := &writes{Driver: memory.New[Key](c.Equal, dataplane.Limits{})}
				b := dataplane.New(c, w)
				b.SetHost(host)
				from, to := before.port(t, host), after.port(t, host)
				decided := func(objects map[Key]Value) (all []oracle.Outcome) {
					sim := NewSim(Options{}, objects, host)
					for _, p := range packets {
						all = append(all, sim.Decide(p))
					}
					return all
				}
				change := func(d model.Delta) {
					if d == (model.Delta{}) {
						return
					}
					b.Update([]model.Delta{d})
					if _, err := b.Sync(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := b.Adopt(t.Context()); err != nil {
					t.Fatal(err)
				}
				change(model.Delta{New: from})
				objects, _ := dataplane.Compile(c, host, slices.DeleteFunc([]*model.Port{to}, func(p *model.Port) bool { return p == nil }))
				were, will := decided(w.Objects), decided(objects)
				w.look = func(op ledger.Op[Key, Value]) {
					for i, is := range decided(w.Objects) {
						was, next := were[i], will[i]
						if was.Fate == oracle.Forward && next.Fate == oracle.Forward && is.Fate != oracle.Forward {
							t.Errorf("after %s %s: %v has no endpoint (%+v)", op.Verb, op.Key, packets[i], is)
						}
						for _, e := range is.Endpoints {
							if !reaches(was, e) && !reaches(next, e) {
								t.Errorf("after %s %s: %v reaches %s", op.Verb, op.Key, packets[i], e.Addr)
							}
						}
					}
				}
				change(model.Delta{Old: from, New: to})
			})
		}
	}
}

func reaches(o oracle.Outcome, to oracle.Target) bool {
	return slices.ContainsFunc(o.Endpoints, func(e oracle.Target) bool { return e.Addr == to.Addr })
}

// The same for random changes of several Services.
func TestEachWriteOfARandomChange(t *testing.T) {
	suite().EachWrite(t)
}

// An address passes to another Service.
func TestEachWriteOfPassing(t *testing.T) { suite().EachWriteOfPassing(t, model.Cluster, model.Local) }

func suite() conformance.Suite[Key, Value] {
	return conformance.Suite[Key, Value]{
		Mode: "ipvs", Compiler: NewCompiler(Options{}),
		Sim: func(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
			return NewSim(Options{}, objects, host).Decide
		},
	}
}
