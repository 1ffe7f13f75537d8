// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// The sets of the table that recheck measures: frontends to chains, as the nftables mode
// has them, and frontends to a number, with a small map from numbers to chains.
var (
	recheckFrontend = []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
	recheckVerdicts = &nft.Set{Name: "verdicts", Key: recheckFrontend, Data: nft.DataVerdict}
	recheckNumbers  = &nft.Set{Name: "numbers", Key: recheckFrontend, Data: nft.DataAddress}
	recheckChains   = &nft.Set{Name: "chains", Key: []nft.Field{nft.Saddr}, Data: nft.DataVerdict}
)

const recheckPicks = 60 // chains

// recheck measures what the kernel takes to give one frontend another chain: where it is
// the verdict of an element, for which it checks the whole table again, and where it is a
// number in a map of data, which it does not.
func recheck() bench {
	return bench{
		name: "recheck", about: "one frontend gets another chain: as a verdict, and as a number that another map has the verdict for",
		rows: func(options) []row {
			return []row{
				{What: "verdict of the frontend replaced: CPU, p50", of: "verdicts CPU", by: median, Unit: seconds, Grows: true},
				{What: "same, p99", of: "verdicts CPU", by: p99, Unit: seconds},
				{What: "number of the frontend replaced: CPU, p50", of: "numbers CPU", by: median, Unit: seconds, Grows: true},
				{What: "same, p99", of: "numbers CPU", by: p99, Unit: seconds},
				{What: "first packet of a connection, frontend with a verdict: CPU", of: "verdicts packet", by: median, Unit: seconds},
				{What: "same, frontend with a number", of: "numbers packet", by: median, Unit: seconds},
			}
		},
		run: func(ctx context.Context, o options, f *figures) error {
			f.World, f.Sizes = "a table with two base chains, by frontends", map[string]float64{}
			sizes := []int{1000, 10000, 50000, 100000}
			if o.short {
				sizes = sizes[:2]
			}
			if err := errors.Join(ip("link set lo up"), ip("route add 10.0.0.0/8 dev lo")); err != nil {
				return err
			}
			var all []contender
			for _, n := range sizes {
				name := fmt.Sprintf("%d frontends", n)
				f.Sizes[name] = float64(n)
				all = append(all, contender{name: name, round: func(ctx context.Context, s samples) error {
					return errors.Join(recheckOnce(ctx, recheckVerdicts, n, s), recheckOnce(ctx, recheckNumbers, n, s))
				}})
			}
			return inRounds(ctx, cmp.Or(o.rounds, 1), all, f)
		},
	}
}

// recheckOnce measures one of the maps with n frontends.
func recheckOnce(ctx context.Context, frontends *nft.Set, n int, s samples) (err error) {
	table := nft.NewTable("recheck", nft.Owner, nft.Owner, recheckVerdicts, recheckNumbers, recheckChains)
	d, err := nft.Open(table, model.IPv4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove(ctx), d.Close()) }()
	for chunk := range slices.Chunk(recheckTable(table, frontends, n), d.Limits().Batch) {
		if err := errors.Join(d.Commit(ctx, chunk)...); err != nil {
			return err
		}
	}
	for i := range 100 {
		k, v := recheckElement(frontends, 7, i%recheckPicks)
		before := ownCPU()
		if err := d.Commit(ctx, []nft.Op{{Verb: ledger.Replace, Key: k, New: v}})[0]; err != nil {
			return err
		}
		s.add(frontends.Name+" CPU", ownCPU()-before)
	}
	return recheckPackets(frontends.Name+" packet", s)
}

// recheckPackets sends packets to a frontend. They are dropped at the end of its chain, so
// that connection tracking finds each the first of a connection.
func recheckPackets(name string, s samples) error {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(world{}.vip(7)))
	if err != nil {
		return err
	}
	defer conn.Close()
	const rounds, packets = 20, 5000
	for range rounds {
		before := ownCPU()
		for range packets {
			if _, err := conn.Write([]byte{0}); !errors.Is(err, syscall.EPERM) {
				return fmt.Errorf("a packet to be dropped: %w", err)
			}
		}
		s.add(name, (ownCPU()-before)/packets)
	}
	return nil
}

// recheckTable returns what makes a table with n frontends.
func recheckTable(table *nft.Table, frontends *nft.Set, n int) (ops []nft.Op) {
	add := func(k nft.Key, v nft.Value) { ops = append(ops, nft.Op{Verb: ledger.Create, Key: k, New: v}) }
	add(table.Object(model.IPv4))
	for _, s := range table.Sets() {
		add(nft.SetObject(model.IPv4, s))
	}
	rules, chain := []nft.Rule{nft.NewRule(nft.Vmap{Map: recheckVerdicts})}, []nft.Rule{nft.NewRule(nft.Drop{})}
	if frontends == recheckNumbers {
		chain = append([]nft.Rule{nft.NewRule(nft.RestoreSource{})}, chain...)
	}
	// A rule that reads the connection has the kernel track connections.
	add(table.ChainObject(model.IPv4, "tracking", nft.Hook{}, []nft.Rule{nft.NewRule(nft.RestoreSource{})}))
	for i := range recheckPicks {
		add(table.ChainObject(model.IPv4, recheckChain(i), nft.Hook{}, chain))
	}
	if frontends == recheckNumbers { // nft has no word for a key that comes from a map, but for an address
		rules = []nft.Rule{nft.NewRule(nft.SetAddr{Field: nft.Saddr, Map: recheckNumbers}), nft.NewRule(nft.Vmap{Map: recheckChains})}
	}
	for name, point := range map[string]nft.Point{"prerouting": nft.PreRouting, "output": nft.LocalOut} {
		add(table.ChainObject(model.IPv4, name, nft.NATHook(point), rules))
	}
	for i := range recheckPicks {
		k := nft.AddrKey(recheckChains, recheckNumber(i))
		add(k, nft.GotoValue(recheckChain(i), ""))
	}
	for i := range n {
		add(recheckElement(frontends, i, i%recheckPicks))
	}
	return ops
}

func recheckChain(i int) string { return fmt.Sprintf("pick-%d", i) }

// recheckNumber is a number of endpoints, written as an address.
func recheckNumber(i int) netip.Addr { return netip.AddrFrom4([4]byte{0, 0, 0, byte(i)}) }

// recheckElement gives a frontend a chain.
func recheckElement(frontends *nft.Set, frontend, chain int) (nft.Key, nft.Value) {
	k := nft.AddrPortKey(frontends, model.UDP, world{}.vip(frontend))
	if frontends == recheckNumbers {
		return k, nft.AddressValue(recheckNumber(chain))
	}
	return k, nft.GotoValue(recheckChain(chain), "")
}
