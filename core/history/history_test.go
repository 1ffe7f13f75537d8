// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/wire"
)

func change(i int) history.Change {
	return history.Change{
		At: int64(i+1) * int64(time.Second), Kind: history.EndpointSlice, Namespace: "ns", Name: "web-1", Service: "web", Version: uint64(i + 1), Known: true,
	}
}

// A change finds the sync that took it, alone or with others, or is said to wait.
func TestFind(t *testing.T) {
	var r history.Recorder
	r.Arrived(history.Change{At: 1e9, Kind: history.Service, Namespace: "ns", Name: "web", Service: "web", Version: 7})
	r.Arrived(history.Change{At: 1.5e9, Kind: history.EndpointSlice, Namespace: "ns", Name: "web-abc", Service: "web", Age: time.Second})
	if !r.Waiting() {
		t.Error("nothing waits")
	}
	r.Synced(history.Sync{At: 2e9, Created: 3, Stages: [history.Stages]time.Duration{time.Second, 1e6, 2e6, 3e6}})
	r.Synced(history.Sync{At: 3e9, Failed: 1, Err: "no space"}) // a retry
	r.Arrived(history.Change{At: 4e9, Kind: history.Service, Namespace: "ns", Name: "other", Service: "other", Deleted: true})
	d := r.Find(history.Filter{})
	if d.Total != 3 || len(d.Entries) != 4 {
		t.Fatalf("%+v", d)
	}
	web, slice, retry, other := d.Entries[0], d.Entries[1], d.Entries[2], d.Entries[3]
	if web.Verb != "added" || web.Sync.Changes != 2 || web.Sync.Stages.Queue != 1 || slice.Sync.Stages.Queue != 0.5 || slice.Sync.Took != 0.506 {
		t.Errorf("%+v\n%+v %+v", web.Sync, slice, slice.Sync)
	}
	if retry.Kind != "Sync" || retry.Sync.Err != "no space" || other.Sync != nil || other.Verb != "deleted" {
		t.Errorf("%+v %+v", retry, other)
	}
	if d := r.Find(history.Filter{Service: model.ServiceName{Namespace: "ns", Name: "web"}}); len(d.Entries) != 2 {
		t.Errorf("of one Service: %+v", d.Entries)
	}
	if d := r.Find(history.Filter{Failed: true}); len(d.Entries) != 1 || d.Entries[0].Sync.Failed != 1 {
		t.Errorf("failed: %+v", d.Entries)
	}
	if d := r.Find(history.Filter{Limit: 1}); len(d.Entries) != 1 || d.Entries[0].Object != "ns/other" {
		t.Errorf("newest: %+v", d.Entries)
	}
	if web.Wrote() != "+3 ~0 -0 (with 1 other)" || retry.Wrote() != "nothing, 1 failed" || other.Wrote() != "waiting" {
		t.Errorf("%q %q %q", web.Wrote(), retry.Wrote(), other.Wrote())
	}
}

// What is forgotten is the oldest, and a change whose sync is forgotten is none that
// waits for it by mistake.
func TestTheOldestAreForgotten(t *testing.T) {
	var r history.Recorder
	for i := range 3*history.Most + 7 {
		r.Arrived(change(i))
		if i%3 == 0 {
			r.Synced(history.Sync{At: int64(i+1) * int64(time.Second), Created: 1})
		}
	}
	d := r.Find(history.Filter{})
	first, last := d.Entries[0], d.Entries[len(d.Entries)-1]
	if len(d.Entries) != history.Most || first.Version != 2*history.Most+8 || last.Version != 3*history.Most+7 || d.Total != 3*history.Most+7 {
		t.Errorf("%d entries, versions %d to %d of %d", len(d.Entries), first.Version, last.Version, d.Total)
	}
	for _, e := range d.Entries {
		if e.Sync == nil || e.Sync.At.Before(e.At) || e.Sync.At.Sub(e.At) > 2*time.Second {
			t.Fatalf("%+v with sync %+v", e, e.Sync)
		}
	}
}

// The newest entries are those of the whole history, whatever else it has, and few more than these are made.
func TestLimit(t *testing.T) {
	var r history.Recorder
	for i := range history.Most + 100 {
		for n := range i % 3 {
			r.Arrived(change(3*i + n))
		}
		s := history.Sync{At: change(3*i + 2).At}
		if i%7 == 0 {
			s.Failed, s.Err = 1, "no space"
		}
		r.Synced(s)
	}
	r.Arrived(change(4 * history.Most)) // waits
	for _, f := range []history.Filter{{}, {Failed: true}, {Service: model.ServiceName{Namespace: "ns", Name: "web"}}, {After: history.Most}} {
		all := r.Find(f)
		for _, limit := range []int{1, 20, 3333, history.Most} {
			f.Limit = limit
			got, want := r.Find(f), all.Entries[max(0, len(all.Entries)-limit):]
			if got.Total != all.Total || !reflect.DeepEqual(got.Entries, want) {
				t.Errorf("%+v: %d entries of %d, not the newest of all", f, len(got.Entries), got.Total)
			}
		}
	}
	few := testing.AllocsPerRun(10, func() { r.Find(history.Filter{Limit: 5}) })
	if few > 100 {
		t.Errorf("5 entries are made by %v allocations", few)
	}
}

// Hostile names are bounded, and full rings take less than 1.5 MB, and 3 MB where no two changes are about
// one object. What each changed comes to less than 1 MB as it mostly is, and to 3 MB at the most.
func TestBytesAreBounded(t *testing.T) {
	long := strings.Repeat("\u00e9", 1<<20)
	r := &history.Recorder{}
	for _, c := range []struct {
		objects int
		most    int64
		what    string
	}{{history.Most, 3 << 20, ""}, {100, 3 << 19, ""}, {100, 5 << 19, "endpoint 10.244.101.107 not ready"}, {100, 9 << 19, strings.Repeat("x", 200)}} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		r = &history.Recorder{}
		for i := range history.Most {
			one := change(i)
			one.Namespace, one.Service = fmt.Sprint("n", "s"), fmt.Sprint("web-", i%c.objects) // in new strings each time, as they come
			one.Name, one.Detail = fmt.Sprintf("checkout-frontend-%05d-x7k2p", i%c.objects), strings.Clone(c.what)
			if i < 100 {
				one.Name, one.Namespace, one.Detail = long, long, long
			}
			r.Arrived(one)
			r.Synced(history.Sync{At: one.At, Created: 2})
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		used := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%d bytes for %d changes of %d objects and as many syncs", used, history.Most, c.objects)
		if used > c.most {
			t.Errorf("%d bytes", used)
		}
	}
	for _, e := range r.Find(history.Filter{}).Entries[:100] {
		if len(e.Object) > 600 || len(e.Detail) > 300 || !strings.HasSuffix(e.Detail, "…") || !strings.HasPrefix(long, strings.TrimSuffix(e.Detail, "…")) {
			t.Fatalf("%d and %d bytes of text", len(e.Object), len(e.Detail))
		}
	}
}

// A list of a full history, made while it is written, allocates what it copies: 136 bytes for each entry, and names and times.
// It was 1400.
func TestWhatAListCosts(t *testing.T) {
	const most = 300 * history.Most
	var r history.Recorder
	for i := range history.Most {
		r.Arrived(change(i))
		r.Synced(history.Sync{At: int64(i)})
	}
	least := uint64(math.MaxUint64)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d, n, each := r.List(history.Filter{})
		length := 0
		last, err := wire.Encode(wire.CBOR, wire.List[history.Entry]{Len: n, Each: each}.In(d, "entries"), func(part []byte) error {
			length += len(part)
			return nil
		})
		if runtime.ReadMemStats(&after); err != nil || n != history.Most || length+len(last) < 100*history.Most {
			t.Fatalf("%d bytes for %d entries (%v)", length+len(last), n, err)
		}
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	t.Logf("%d bytes", least)
	if least > most {
		t.Errorf("%d bytes, want at most %d", least, most)
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	var r history.Recorder
	for i := range history.Most {
		r.Arrived(change(i))
		r.Synced(history.Sync{At: int64(i)})
	}
	c := change(1)
	if n := testing.AllocsPerRun(1000, func() { r.Arrived(c); r.Synced(history.Sync{At: 1}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Readers see whole records while one goroutine writes, and each change but the newest, which may wait, with
// its sync.
func TestReadersBesideTheWriter(t *testing.T) {
	var r history.Recorder
	var group sync.WaitGroup
	defer group.Wait()
	write := make(chan int)
	defer close(write)
	group.Go(func() {
		i := 0
		for n := range write {
			for range n {
				r.Arrived(change(i))
				i++
				r.Synced(history.Sync{At: int64(i) * int64(time.Second)})
			}
		}
	})
	write <- history.Most
	write <- 1 // the ring is full
	for i := range 400 {
		f, last := history.Filter{Limit: 1 + i%20}, uint64(0)
		if i%20 == 0 {
			f.Limit = 0
		}
		write <- 1000 // while they are read
		all := r.Find(f).Entries
		for i, e := range all {
			if e.Version != e.Number || e.Number <= last || e.Sync == nil && i < len(all)-1 {
				t.Fatalf("%+v after %d, the newest is %d", e, last, all[len(all)-1].Number)
			}
			last = e.Number
		}
	}
}

func BenchmarkChange(b *testing.B) {
	var r history.Recorder
	c := change(1)
	b.ReportAllocs()
	for b.Loop() {
		r.Arrived(c)
		r.Synced(history.Sync{At: 1})
	}
}

// What is shown is in the order of its arrival, and the newest entries are those that arrived last,
// though the clock was set back meanwhile.
func TestClockSetBack(t *testing.T) {
	var r history.Recorder
	ahead := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	now := ahead.Add(-24 * time.Hour)
	arrive := func(at time.Time, names ...string) {
		for _, name := range names {
			r.Arrived(history.Change{Kind: history.Service, At: at.UnixNano(), Namespace: "shop", Name: name, Service: name})
		}
		r.Synced(history.Sync{At: at.UnixNano(), Created: 1})
	}
	arrive(ahead, "a", "b")
	arrive(ahead.Add(time.Second)) // a retry
	arrive(now, "c")
	arrive(now.Add(time.Second))
	arrive(now.Add(2*time.Second), "d")
	shown := func(limit int) (all []string) {
		for _, e := range r.Find(history.Filter{Limit: limit}).Entries {
			all = append(all, strings.TrimPrefix(e.Object+e.Verb, "shop/"))
		}
		return all
	}
	if got, want := fmt.Sprint(shown(0)), "[aadded badded retried cadded retried dadded]"; got != want {
		t.Errorf("all: %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(shown(2)), "[retried dadded]"; got != want {
		t.Errorf("the newest: %s, want %s", got, want)
	}
}
