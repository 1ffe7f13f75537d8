// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
)

// The last hour has a minute each, with the changes applied in it, how long they took, and what the process used.
func TestHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r history.Recorder
		var used history.Usage
		reads := 0
		r.Measure(func() history.Usage { reads++; return used })
		change := func(took time.Duration) {
			now := time.Now().UnixNano()
			r.Arrived(history.Change{At: now - int64(took/2), Kind: history.Service, Namespace: "ns", Name: "web"})
			r.Synced(history.Sync{At: now, Stages: [history.Stages]time.Duration{took / 2, took / 4, 0, took / 4}})
		}
		change(time.Millisecond)
		for range 99 { // none takes longer than 2 ms
			used.CPU += time.Millisecond
			used.Memory = 50_000_000
			change(1500 * time.Microsecond)
		}
		if reads != 1 {
			t.Errorf("the use was read %d times in a minute", reads)
		}
		time.Sleep(3 * time.Minute)
		used.CPU += 900 * time.Millisecond
		change(100 * time.Millisecond)
		all := r.Find(history.Filter{Limit: 1}).Hour
		if len(all) != 4 {
			t.Fatalf("%d minutes: %+v", len(all), all)
		}
		first, last := all[0], all[3]
		if first.Changes != 100 || first.Median != 0.002048 || first.P99 != 0.002048 || last.Changes != 1 || last.P99 != 0.131072 || all[1].Changes != 0 || all[1].P99 != 0 {
			t.Errorf("changes: %+v", all)
		}
		cpu := history.Seconds(0)
		for _, m := range all {
			cpu += m.CPU
		}
		if cpu < 0.998 || cpu > 1 || all[1].CPU < 0.2 || last.Memory != used.Memory {
			t.Errorf("%v s of CPU: %+v", cpu, all)
		}
		if got := last.At.Sub(first.At); got != 3*time.Minute {
			t.Errorf("they are %s apart", got)
		}
		time.Sleep(2 * time.Hour)
		all = r.Find(history.Filter{}).Hour
		if len(all) != history.Minutes || all[0].CPU != 0 || all[0].Changes != 0 {
			t.Errorf("two hours later %d minutes, the first %+v", len(all), all[0])
		}
		if all := r.Find(history.Filter{After: 1}).Hour; all != nil {
			t.Errorf("a follower gets the hour each time")
		}
	})
}

// Nothing is read where nobody tells what is used.
func TestHourWithoutUsage(t *testing.T) {
	var r history.Recorder
	now := time.Now().UnixNano()
	r.Arrived(history.Change{At: now, Kind: history.Service, Namespace: "ns", Name: "web"})
	r.Synced(history.Sync{At: now})
	all := r.Find(history.Filter{}).Hour
	if len(all) == 0 || all[0].Changes != 1 || all[0].Memory != 0 {
		t.Errorf("%+v", all)
	}
}
