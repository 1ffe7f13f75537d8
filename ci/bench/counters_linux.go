// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// counters measures what counters in the elements of maps cost the first packet of a
// connection. Four nodes, each in a namespace of its own, take turns, and each turn is compared with the one
// beside it: whatever else the machine does meets all of them. The last is a second one without counters: what it
// costs more than the first is how far the others' figures can be trusted. In a guest whose clock counts
// instructions (ci/guest), the figures are exact.
func counters() bench {
	return bench{
		name: "counters", about: "what counting connections by frontend, and by endpoint, costs a first packet",
		rows: func(options) []row {
			return []row{
				{What: "first packet of a connection, CPU, least", of: "packet", by: least, Unit: seconds},
				{What: "same, median", of: "packet", by: median, Unit: seconds},
				{What: "more than without counters, median of pairs", of: "more", by: median, Unit: share},
				{What: "connections counted by frontend, of those made", of: "frontends", by: median, Unit: share},
				{What: "same, by endpoint", of: "endpoints", by: median, Unit: share},
			}
		},
		run: runCounters,
	}
}

// countingNode is a node on which Tandem counts, or does not.
type countingNode struct {
	name   string
	change func(*config.Config)
	net    *lab.Net
	path   *path
	syns   *syns
}

func runCounters(ctx context.Context, o options, f *figures) (err error) {
	w := world{services: cmp.Or(o.world.services, 1000), endpoints: 5}
	rounds, packets := cmp.Or(o.rounds, 100), 20000
	if o.short {
		w.services, rounds, packets = 50, 3, 200
	}
	f.World, f.Rounds = w.String()+", SYNs from the node, which are dropped when they have been translated", rounds
	nodes := []*countingNode{
		{name: "no counters", change: func(*config.Config) {}},
		{name: "frontends", change: func(c *config.Config) { c.CountConnections = true }},
		{name: "frontends and endpoints", change: func(c *config.Config) { c.CountConnections, c.CountEndpoints = true, true }},
		{name: "no counters, again", change: func(*config.Config) {}},
	}
	for _, n := range nodes {
		defer func() { err = errors.Join(err, n.close()) }()
		if err := n.open(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	found := make([]samples, len(nodes))
	for i := range found {
		found[i] = samples{}
	}
	for round := range rounds {
		each := make([]float64, len(nodes))
		for i := range nodes {
			k := (i + round) % len(nodes)
			if each[k], err = nodes[k].send(packets); err != nil {
				return fmt.Errorf("%s: %w", nodes[k].name, err)
			}
		}
		for i := range nodes {
			found[i].add("packet", each[i])
			if i > 0 {
				found[i].add("more", each[i]/each[0]-1)
			}
		}
	}
	for i, n := range nodes {
		if err := n.counted(ctx, found[i]); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
		f.column(n.name, false, found[i])
	}
	return nil
}

// open programs the Services on a node of its own.
func (n *countingNode) open(ctx context.Context, w world) (err error) {
	n.net, err = lab.New(ctx, lab.Plan{Node: []netip.Addr{nodeIP}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}})
	if err != nil {
		return err
	}
	open := func(ctx context.Context, c *config.Config) (dataplane.Backend, error) {
		n.change(c)
		return ofMode(config.NFTables)(ctx, c)
	}
	return n.net.Do(lab.Node, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		n.syns = newSYNs(fd, w)
		if n.path, err = openPath(ctx, open, w); err != nil {
			return err
		}
		return errors.Join(n.path.program(samples{}), loadDropRules())
	})
}

// send sends first packets and returns the CPU time of each, in seconds.
func (n *countingNode) send(packets int) (each float64, err error) {
	before := ownCPU()
	err = n.syns.send(packets)
	return (ownCPU() - before) / float64(packets), err
}

// counted compares what was counted with what was sent: counters that do not count would cost nothing.
func (n *countingNode) counted(ctx context.Context, s samples) error {
	return n.net.Do(lab.Node, func() error {
		sum := uint64(0)
		add := func(c dataplane.Connections) { sum += c.New }
		for i, by := range []string{"frontends", "endpoints"} {
			sum = 0
			if counted, err := n.path.backend.Connections(ctx, i > 0, add); err != nil || !counted {
				return err
			}
			s.add(by, float64(sum)/float64(n.syns.sent))
		}
		return nil
	})
}

func (n *countingNode) close() error {
	var errs []error
	if n.syns != nil {
		errs = append(errs, unix.Close(n.syns.fd))
	}
	if n.path != nil {
		errs = append(errs, n.path.backend.Close())
	}
	if n.net != nil {
		errs = append(errs, n.net.Close())
	}
	return errors.Join(errs...)
}
