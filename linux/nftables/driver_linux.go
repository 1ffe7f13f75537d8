// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Driver applies objects to our tables.
type Driver struct {
	*nft.Driver
	families []model.Family
	liberal  *host.Liberal // nil where it does not matter
}

// Close implements dataplane.Driver.
func (d *Driver) Close() error { return errors.Join(d.Driver.Close(), d.liberal.Close()) }

var (
	_ dataplane.Driver[nft.Key, nft.Value]   = (*Driver)(nil)
	_ dataplane.Getter[nft.Key, nft.Value]   = (*Driver)(nil)
	_ dataplane.Sentinel                     = (*Driver)(nil)
	_ dataplane.Bounded                      = (*Driver)(nil)
	_ dataplane.Compiler[nft.Key, nft.Value] = (*Compiler)(nil)
	_ dataplane.Slotter[nft.Key, nft.Value]  = (*Compiler)(nil)
)

// Open returns a driver for the network namespace that the calling thread is
// in. Close it after use; programmed objects stay.
func Open(o Options) (*Driver, error) {
	d, err := nft.Open(table, o.families()...)
	if err != nil {
		return nil, err
	}
	if o.Count {
		d.Count(mostCounters(host.PossibleCPUs()), o.counted()...)
	}
	return &Driver{Driver: d, families: o.families()}, nil
}

// Full implements dataplane.Bounded.
func (d *Driver) Full() (full []model.Problem) {
	for _, f := range d.families {
		if d.Filled(f, setAffinityFull) {
			detail := fmt.Sprintf("affinity of %s clients: %d are remembered, others are served and not remembered", f, affinitySize)
			full = append(full, model.Problem{Object: "data plane", Why: model.WhyFull, Detail: detail})
		}
	}
	full = append(full, d.liberal.Lost()...)
	if d.Uncounted() {
		detail := fmt.Sprintf("not all connections are counted: counters may take %d MB of kernel memory, which is room for %d on this machine", counterMemory/1_000_000, mostCounters(host.PossibleCPUs()))
		full = append(full, model.Problem{Object: "data plane", Why: model.WhyFull, Detail: detail})
	}
	return full
}

// Probe finds out whether this kernel can do what we need, by doing it in
// scratch tables that meet no packet: the same sets, maps and rules, and an
// element of each kind. With no families it tries both. The error states what is
// missing and what to do about it; a foreign table of our name is one. Any number
// of processes may probe at once.
func Probe(ctx context.Context, families ...model.Family) error {
	o := Options{Families: families}
	return nft.Try(ctx, table, probeObjects(o), o.families()...)
}

// probeObjects are the skeleton, and a port in it.
func probeObjects(o Options) map[nft.Key]nft.Value {
	c := NewCompiler(o)
	objects := map[nft.Key]nft.Value{}
	emit := func(k nft.Key, v nft.Value) { objects[k] = v }
	host := &model.Host{}
	for _, f := range o.families() {
		addr := netip.MustParseAddr([...]string{model.IPv4: "192.0.2.1", model.IPv6: "2001:db8::1"}[f])
		host.NodePorts.Prefixes = append(host.NodePorts.Prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		for _, affinity := range []time.Duration{0, time.Hour} {
			c.Port(host, probePort(addr, affinity), emit)
		}
	}
	c.Base(host, emit)
	return objects
}

func probePort(addr netip.Addr, affinity time.Duration) *model.Port {
	at := netip.AddrPortFrom(addr, 80)
	if affinity > 0 {
		at = netip.AddrPortFrom(addr, 81)
	}
	pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: at, Local: true}, {Addr: netip.AddrPortFrom(addr, 82)}}}
	act := model.Action{Pool: pool}
	return &model.Port{
		ID:              model.PortID{Service: model.ServiceName{Namespace: "tandem", Name: "probe"}, Proto: model.TCP, Family: model.FamilyOf(addr)},
		SessionAffinity: affinity,
		Frontends: []model.Frontend{{
			Kind: model.KindLoadBalancer, At: at, On: [...]model.Action{act, act, act},
			Restricted: true, Allow: []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen()-8).Masked()},
		}},
	}
}
