// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/model"
)

// One change costs the same whatever else there is, and a count allocates
// nothing.
func BenchmarkChecksUpdate(b *testing.B) {
	for _, services := range []int{10, 10000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			c := health.NewChecks(health.ChecksOptions{Healthy: func() bool { return true }, Log: quiet})
			host := everywhere()
			var deltas []model.Delta
			for i := range services {
				deltas = append(deltas, model.Delta{New: port(fmt.Sprint("s", i), "", model.IPv4, uint16(1+i), 1)})
			}
			c.Update(host, deltas, nil)
			one, two := deltas[5].New, port("s5", "", model.IPv4, 6, 2)
			change, back := []model.Delta{{Old: one, New: two}}, []model.Delta{{Old: two, New: one}}
			b.ReportAllocs()
			for b.Loop() {
				c.Update(host, change, nil)
				c.Update(host, back, nil)
			}
		})
	}
}

// What a thousand Services with a check cost without requests: memory of heap
// and stacks for each, and the time until all listen.
func BenchmarkThousandChecks(b *testing.B) {
	var memory, took float64
	for b.Loop() {
		before := inUse()
		w := newWire()
		c := health.NewChecks(health.ChecksOptions{Listen: w.Listen, Healthy: func() bool { return true }, Log: quiet})
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error)
		start := time.Now()
		go func() { done <- c.Run(ctx) }()
		var deltas []model.Delta
		for i := range 1000 {
			deltas = append(deltas, model.Delta{New: port(fmt.Sprint("s", i), "", model.IPv4, uint16(30000+i), 1)})
		}
		c.Update(everywhere(), deltas, nil)
		for w.count() < 1000 {
			time.Sleep(time.Millisecond)
		}
		took = time.Since(start).Seconds()
		memory = float64(inUse()-before) / 1000
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(memory, "B/check")
	b.ReportMetric(took*1000, "ms/1000-checks")
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
