// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Driver applies objects to Tandem's tables.
type Driver struct {
	*nft.Driver
	families []model.Family
	liberal  *host.Liberal // nil unless Options.Liberal
	crowded  crowded       // used by Problems only
}

func (d *Driver) Close() error { return errors.Join(d.Driver.Close(), d.liberal.Close()) }

var (
	_ dataplane.Driver[nft.Key, nft.Value]   = (*Driver)(nil)
	_ dataplane.Compiler[nft.Key, nft.Value] = (*Compiler)(nil)
)

// newBackend joins a compiler and a driver. Audits for one packet read only the elements on
// its path.
func newBackend(c *Compiler, d *Driver) dataplane.Backend {
	return dataplane.NewAlong(c, d, dataplane.Path[nft.Key, nft.Value]{
		Lookups: func(objects map[nft.Key]nft.Value, host *model.Host) func(oracle.Packet) []nft.Key {
			return nft.NewSim(objects, host).Lookups
		},
		Single: nft.Key.Single, Observe: d.ObserveSome,
	})
}

// Open returns a driver for the network namespace of the calling thread. Close it after use;
// programmed objects stay.
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

func (d *Driver) Problems() []model.Problem {
	all := append(d.crowded.read(d, time.Now()), d.liberal.Lost()...)
	if d.Uncounted() {
		detail := fmt.Sprintf("not all connections are counted: counters may take %d MB of kernel memory, which is room for %d on this machine", counterMemory/1_000_000, mostCounters(host.PossibleCPUs()))
		all = append(all, model.Problem{Object: "data plane", Why: model.WhyFull, Detail: detail})
	}
	return all
}

// crowded reads the set of ports whose clients found no room for affinity. Rules fill the
// set without a notice, so it is read every few seconds; mostly it is empty.
type crowded struct {
	next  time.Time // when it is read again
	ports [2][]netip.Addr
	found []model.Problem
}

const crowdedEvery = 2 * time.Second

// crowdedParts bounds reading to 1/crowdedParts of the time, since it delays changes.
const crowdedParts = 200

// read returns a Problem for each Service. If the set cannot be read, it returns the last result.
// Names of Services are looked up only when the ports have changed.
func (c *crowded) read(d *Driver, now time.Time) []model.Problem {
	if now.Before(c.next) {
		return c.found
	}
	defer func() { c.next = now.Add(max(crowdedEvery, crowdedParts*time.Since(now))) }()
	var ports [2][]netip.Addr
	for _, f := range d.families {
		if err := d.Filled(context.Background(), f, setAffinityFull, func(a netip.Addr) { ports[f] = append(ports[f], a) }); err != nil {
			return c.found
		}
		slices.SortFunc(ports[f], netip.Addr.Compare)
	}
	if slices.Equal(ports[model.IPv4], c.ports[model.IPv4]) && slices.Equal(ports[model.IPv6], c.ports[model.IPv6]) {
		return c.found
	}
	services := map[model.ServiceName][2]bool{}
	for f, known := range ports {
		if len(known) == 0 {
			continue
		}
		names, err := d.servicesKnownBy(model.Family(f), known)
		if err != nil {
			return c.found
		}
		for _, name := range names {
			families := services[name]
			families[f] = true
			services[name] = families
		}
	}
	c.ports, c.found = ports, crowdedProblems(services)
	return c.found
}

// servicesKnownBy returns the Services whose ports have the given affinity identities, by the
// comments on the elements of their frontends.
func (d *Driver) servicesKnownBy(f model.Family, known []netip.Addr) (names []model.ServiceName, err error) {
	ctx, answers := context.Background(), map[nft.Key]struct{}{}
	for ports, to := range map[*nft.Set]*nft.Set{setAffinityPorts: setVIPs, setAffinityNodePorts: setNodePorts} {
		err := d.ReadSet(ctx, f, ports, func(k nft.Key, v nft.Value) {
			if _, is := slices.BinarySearchFunc(known, v.Endpoint(f).Addr(), netip.Addr.Compare); is {
				k.Set = to
				answers[k] = struct{}{}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	seen := map[model.ServiceName]bool{}
	err = d.Get(ctx, slices.Collect(maps.Keys(answers)), func(_ nft.Key, v nft.Value) {
		if v.Body == nil {
			return
		}
		service, _, _ := strings.Cut(v.Body.Comment, ":") // the comment is model.PortID.String
		if name, err := model.ParseServiceName(service); err == nil && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	})
	return names, err
}

// Probe returns an error if this kernel does not support the mode's sets, maps, rules and
// elements, which it creates in scratch tables that no packet reaches. Without families it
// tries both. The error states what is missing and what to do about it; a foreign table
// named Table is an error, too. Any number of processes may probe at once.
func Probe(ctx context.Context, families ...model.Family) error {
	o := Options{Families: families}
	return nft.Try(ctx, table, probeObjects(o), o.families()...)
}

// probeObjects returns the base objects, and ports with and without affinity.
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
