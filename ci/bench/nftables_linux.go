// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// nftables measures the path from tracker to kernel in several sizes of clusters.
func nftables() bench {
	middle := world{services: 10000, endpoints: 5}
	return bench{
		name: "nftables", about: "nftables mode, from the tracker to the kernel, in several sizes",
		rows: func(options) []row {
			return []row{
				{What: "everything programmed, inputs read", of: "cold", by: median, Unit: seconds, Goal: goal{AtMost: 1, In: middle.String()}},
				{What: "objects of that", of: "objects", by: median},
				{What: "transactions of that", of: "transactions", by: median},
				{What: "one endpoint replaced, event to acknowledgement, p50", of: "replaced", by: median, Unit: seconds, Goal: goal{AtMost: 1e-3}},
				{What: "the same, p99", of: "replaced", by: p99, Unit: seconds},
				{What: "the same, worst", of: "replaced", by: most, Unit: seconds},
				{What: "the same, most writes", of: "replaced writes", by: most, Goal: goal{AtMost: 5}},
				{What: "the same, p50 in all sizes", of: "replaced", by: median, Unit: seconds, Goal: goal{Flat: 2}},
				{What: "one of very many endpoints replaced, p50", of: "wide", by: median, Unit: seconds},
				{What: "the same, most writes", of: "wide writes", by: most, Goal: goal{AtMost: 5}},
				{What: "one endpoint added or removed, p50", of: "scaled", by: median, Unit: seconds},
				{What: "the same, worst", of: "scaled", by: most, Unit: seconds},
				{What: "the same, most writes", of: "scaled writes", by: most},
				{What: "audit: read and compared during the changes", of: "audit", by: median, Unit: seconds},
				{What: "restart: read back", of: "read back", by: median, Unit: seconds},
				{What: "restart: compared", of: "compare", by: median, Unit: seconds},
				{What: "restart: writes", of: "restart writes", by: most, Goal: goal{Zero: true}},
			}
		},
		run: func(ctx context.Context, o options, f *figures) error {
			f.World = "nftables mode, by Services x endpoints"
			worlds := []world{{services: 1000, endpoints: 5}, middle, {services: 50000, endpoints: 5}, {services: 1, endpoints: 5000}}
			if o.short {
				worlds = []world{{services: 100, endpoints: 5}, {services: 1000, endpoints: 5}, {services: 1, endpoints: 500}}
			}
			var all []contender
			for _, w := range worlds {
				all = append(all, contender{name: w.String(), round: func(ctx context.Context, s samples) error {
					return sizeOf(ctx, w, s)
				}})
			}
			return inRounds(ctx, cmp.Or(o.rounds, 1), all, f)
		},
	}
}

// sizeOf measures one size; a world of one Service has very many endpoints.
func sizeOf(ctx context.Context, w world, s samples) (err error) {
	p, err := openPath(ctx, ofMode(config.NFTables), w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.program(s); err != nil {
		return err
	}
	if w.services == 1 {
		return p.change(s, "wide", 200, func(i int) *model.Slice { return p.endpoints(0, 1, 1+i) })
	}
	if err := errors.Join(p.replace(s, "replaced", 500), p.resize(s, "scaled", 200)); err != nil {
		return err
	}
	if err := p.audit(s); err != nil {
		return err
	}
	return p.restart(s)
}
