// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// The size of the world of TestFigures, which is that of kubernetes#109124.
const (
	figureServices  = 2000
	figureEndpoints = 5000 // remote ones
)

// What kube-proxy 1.37 asks of HNS, by its documented sequence: each sync reads
// the network, every endpoint and every load balancer (1 call for a list, 3 for
// each of its objects); making an endpoint is 5 calls and a load balancer 3, a
// change in place 4, a deletion 5 since the object is read before.
const (
	theirList     = 4 + 1 + 3*(figureEndpoints+2) + 1 + 3*figureServices
	theirEndpoint = 5
	theirModify   = 4
	theirDelete   = 5
	theirBalancer = 3

	// A start finds nothing, or deletes all load balancers that it finds, each with
	// one call, and makes them again.
	theirStart   = 6 + theirEndpoint*figureEndpoints + theirBalancer*figureServices
	theirRestart = 1 + 3*figureServices + figureServices + theirList - 3*figureServices + theirBalancer*figureServices
)

// TestFigures prints what a change costs in calls to HNS, here by a run and with
// kube-proxy by its sequence of calls, and how long a VIP has no load balancer meanwhile: with Modify
// (15.5), and as a replacement where HNS has none.
func TestFigures(t *testing.T) {
	f := &figures{T: t, rows: map[string]*figure{}}
	for _, v := range []hns.Version{hnsemu.WS2025, hnsemu.WS2022} {
		f.measure(v)
	}
	t.Logf("%d Services, %d remote endpoints; calls of HNS' functions\n%s", figureServices, figureEndpoints, f)
}

// figures are the rows, by what is done.
type figures struct {
	*testing.T
	order []string
	rows  map[string]*figure
}

type figure struct {
	calls, gaps []string // by version
	theirs      string
}

func (f *figures) measure(v hns.Version) {
	on(f.T, v, func(r *rig) {
		modify := v.Features().Modify
		change := theirModify
		if !modify {
			change = theirDelete + theirBalancer
		}
		fill(r)
		r.begin()
		if n := len(strings.Fields(r.remotes())); n != figureEndpoints {
			r.Errorf("%d remote endpoints", n)
		}
		least := 5*figureEndpoints + 3*figureServices // 5 calls for each endpoint and 3 for each load balancer
		f.note(r, "cold start", theirStart, 0, least)
		r.set("s0007", "10.96.0.8", address(0)+" "+address(1)+" 10.244.99.1")
		r.sync()
		f.note(r, "an endpoint replaced by another", theirList+theirEndpoint+change, 1, 8)
		r.set("s0007", "10.96.0.8", address(0)+" "+address(1))
		r.sync()
		f.note(r, "an endpoint leaves", theirList+change, 1, 8)
		r.set("s0007", "10.96.0.8", address(0)+" "+address(1)+" 10.244.1.2")
		r.sync()
		f.note(r, "a pod of this node joins", theirList+change, 1, 8)
		r.settle()
		f.note(r, "both that left are taken away", 2*theirDelete, 0, 8)
		r.set("new", "10.97.0.1", address(0))
		r.sync()
		f.note(r, "a Service is made", theirList+theirBalancer, 0, 8)
		r.unset("new")
		r.sync()
		f.note(r, "a Service is deleted", theirList+theirDelete, 0, 8)
		for range 10 {
			r.set("s0009", "10.96.0.10", r.served("10.96.0.10"))
			r.sync()
		}
		f.note(r, "ten syncs without a change", 10*theirList, 0, 0)
		r.restart()
		r.begin()
		if r.emu.Writes() != 0 {
			r.Error("a restart wrote something")
		}
		f.note(r, "restart, everything in place", theirRestart, 0, theirList)
		r.audit()
		f.note(r, "an audit", 0, 0, theirList)
	})
}

// address is that of a remote endpoint, of which the world has so many.
func address(i int) string { return fmt.Sprintf("10.244.%d.%d", 100+i/250, 1+i%250) }

// fill sets the Services, with three endpoints each.
func fill(r *rig) {
	for i := range figureServices {
		vip := fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)
		a, b, c := address(2*i%figureEndpoints), address((2*i+1)%figureEndpoints), address((4000+i)%figureEndpoints)
		r.set(fmt.Sprintf("s%04d", i), vip, strings.Join([]string{a, b, c}, " "))
	}
}

// note writes down what was called since the last time, and demands that it is
// no more than most; with Modify there must be no gap, and otherwise no more than
// one for each load balancer that changes.
func (f *figures) note(r *rig, what string, theirs, changed, most int) {
	r.Helper()
	if f.rows[what] == nil {
		f.order = append(f.order, what)
		f.rows[what] = &figure{theirs: fmt.Sprint(theirs)}
		if theirs == 0 {
			f.rows[what].theirs = "none made"
		}
	}
	gaps := r.emu.Outages()
	var longest time.Duration
	for _, g := range gaps {
		longest = max(longest, g.For)
	}
	if r.version.Features().Modify {
		changed = 0
	}
	if n := r.emu.Calls(); len(gaps) > changed || n > most {
		r.Errorf("%s: %d calls, want at most %d; gaps %v", what, n, most, gaps)
	}
	row := f.rows[what]
	row.calls = append(row.calls, fmt.Sprint(r.emu.Calls()))
	row.gaps = append(row.gaps, fmt.Sprint(longest))
	r.emu.Forget()
}

// String is the table.
func (f *figures) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-34s%10s%8s%12s%8s  %s\n", "", "HNS 15.5", "gap", "HNS 13.2", "gap", "kube-proxy, by its sequence of calls")
	for _, what := range f.order {
		row := f.rows[what]
		fmt.Fprintf(&b, "%-34s%10s%8s%12s%8s%13s\n", what, row.calls[0], row.gaps[0], row.calls[1], row.gaps[1], row.theirs)
	}
	b.WriteString("A gap is in the emulator's time: a call takes 1 ms. kube-proxy's calls are counted by its sequence, not run, with HNS 15.5;\nits restart leaves every VIP without a load balancer for a while.")
	return b.String()
}
