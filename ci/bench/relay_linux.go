// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// userspace compares the userspace mode with nginx (stream) and HAProxy, all on
// the loopback interface of a namespace. Proxy, clients and endpoint share the
// processors.
//
// "CPU of one" is the processor time that the proxy's processes take for a
// connection with a question and an answer: work of others on the machine, which
// lowers the connections per second, changes it little. "Memory of an idle
// connection" is by how much the processes grow for 1,000 of them after everything that
// load: one that has room left from it does not grow at all.
func userspace() bench {
	return bench{
		name: "relay", about: "userspace mode compared with nginx (stream) and HAProxy",
		rows: func(options) []row {
			return []row{
				{What: "connections/s", of: "rate", by: median, Ratio: true, Goal: goal{Share: .9}},
				{What: "CPU of one", of: "CPU", by: median, Unit: seconds, Ratio: true},
				{What: "Gbit/s", of: "gigabits", by: median, Ratio: true, Goal: goal{Share: .9}},
				{What: "memory of an idle connection", of: "idle", by: median, Unit: memory, Goal: goal{AtMost: 20 << 10, In: "Tandem"}},
			}
		},
		run: runRelay,
	}
}

func runRelay(ctx context.Context, o options, f *figures) error {
	f.World = "userspace mode"
	if err := prepareLoopback(); err != nil {
		return err
	}
	e, err := newEndpoint()
	if err != nil {
		return err
	}
	defer e.close()
	rounds := cmp.Or(o.rounds, 5)
	if o.short {
		rounds = 1
	}
	var all []contender
	for _, p := range []proxy{tandemRelay(o), nginx(o.dir), haproxy(o.dir), relayAlone(), noProxy()} {
		if !o.chosen(p.name) {
			continue
		}
		run, err := p.start(ctx, o.dir)
		if err != nil {
			f.Notes = append(f.Notes, fmt.Sprintf("%s is not measured: %v", p.name, err))
			continue
		}
		all = append(all, contender{name: p.name, peer: p.peer, stop: run.end, round: func(ctx context.Context, s samples) error {
			return run.round(ctx, s, len(s["rate"]) == rounds-1)
		}})
	}
	return inRounds(ctx, rounds, all, f)
}

// round measures a proxy at work, and in its last round what idle connections take.
func (r *carrier) round(ctx context.Context, s samples, last bool) error {
	before := cpu(r.pids()...)
	made, rate, err := connections(ctx, r.at, time.Second)
	if err != nil {
		return err
	}
	s.add("rate", rate)
	if r.process != nil {
		s.add("CPU", (cpu(r.pids()...)-before)/float64(made))
	}
	gigabits, err := throughput(ctx, r.at, time.Second)
	if err != nil {
		return err
	}
	s.add("gigabits", gigabits)
	if !last || r.process == nil {
		return nil
	}
	idle, err := idleConnections(ctx, r.at, r.pids())
	s.add("idle", idle)
	return err
}

// aloneAddr is where the relay without rules listens.
const aloneAddr = "127.0.0.1:9003"

// alone is no benchmark: it starts this program as the relay alone, a process of
// its own like all others that are measured.
func alone() bench {
	return bench{
		name: "relay-alone", about: "serve as the relay that the relay benchmark measures without rules",
		rows: func(options) []row { return nil },
		run: func(ctx context.Context, _ options, _ *figures) error {
			debug.SetGCPercent(30) // as tandem does
			s := relay.NewServer(relay.Options{})
			policy := relay.Same(relay.Answer{Verdict: model.Balance, Endpoints: []netip.AddrPort{netip.MustParseAddrPort(endpointAddr)}})
			if _, err := s.Listen(model.TCP, netip.MustParseAddrPort(aloneAddr), policy); err != nil {
				return err
			}
			<-ctx.Done()
			return s.Close(0)
		},
	}
}

// relayAlone is the relay as a library: what it takes less than tandem are the
// rules, the flow table of the kernel behind them and the rest of the program.
func relayAlone() proxy {
	return proxy{name: "relay alone", start: func(ctx context.Context, dir string) (*carrier, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return carry(ctx, dir, aloneAddr, nil, self, "relay-alone")
	}}
}
