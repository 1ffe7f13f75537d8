// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// listed is a list, and what was in it when it was made.
type listed struct {
	list []*track.View
	was  []track.View
}

func keep(list []*track.View) (l listed) {
	l.list = list
	for _, v := range list {
		was := *v
		was.Slices, was.Ports, was.Problems, was.Ready = slices.Clone(v.Slices), slices.Clone(v.Ports), slices.Clone(v.Problems), maps.Clone(v.Ready)
		l.was = append(l.was, was)
	}
	return l
}

// A list has every Service there is, as it is at that moment, and stays so whatever changes
// afterwards: also while what was made from it changes.
func TestListsStay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(1_700_000_000, 0)
	tr := track.New()
	tr.SetClock(func() time.Time { return now })
	tr.SetHost(host("a"))
	there := map[model.ServiceName]bool{}
	var all []listed
	for turn := range 4000 {
		n := fmt.Sprint("s", random.IntN(12))
		switch random.IntN(9) {
		case 0:
			tr.Delete(&model.Service{Name: name(n)})
			delete(there, name(n))
		case 1, 2:
			s := service(n, fmt.Sprintf("10.96.0.%d", random.IntN(20)), 80) // an address may be another's
			if random.IntN(3) == 0 {
				s.Choice.SlowStart = 20 * time.Second
			}
			tr.Set(s)
			there[name(n)] = true
		case 3, 4:
			tr.Set(slice(fmt.Sprint("e", random.IntN(30)), n, 80, fmt.Sprintf("10.0.0.%d", random.IntN(9)), fmt.Sprintf("10.0.1.%d", turn%250)))
		case 5:
			tr.Delete(&model.Slice{Name: model.SliceName{Namespace: "ns", Name: fmt.Sprint("e", random.IntN(30))}})
		case 6:
			tr.SetSuspects(model.Suspects{netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(9))}): {}})
		case 7:
			now = now.Add(3 * time.Second)
			tr.Flush()
		case 8:
			tr.SetHost(host(fmt.Sprint(random.IntN(2))))
		}
		if random.IntN(4) > 0 {
			continue
		}
		list := tr.Unsorted()
		names := map[model.ServiceName]bool{}
		for _, v := range list {
			names[v.Object.Name] = true
			if got := tr.Service(v.Object.Name); !reflect.DeepEqual(got, *v) {
				t.Fatalf("turn %d: listed as %+v, is %+v", turn, v, got)
			}
		}
		if !maps.Equal(names, there) || len(list) != len(there) || tr.Len() != len(there) {
			t.Fatalf("turn %d: %d listed, %d counted: %v, want %v", turn, len(list), tr.Len(), names, there)
		}
		all = append(all, keep(list), keep(tr.Named(name(n))), keep(tr.Concerned(model.TCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(random.IntN(20))}), 80))))
		if random.IntN(20) == 0 {
			again := track.Resume(host("a"), list, &model.Objects{}, nil, now)
			again.Set(slice("e1", n, 80, "10.0.2.1"))
			again.Delete(&model.Service{Name: name("s1")})
			again.Flush()
		}
	}
	views := 0
	for i, l := range all {
		for k, v := range l.list {
			if views++; !reflect.DeepEqual(*v, l.was[k]) {
				t.Fatalf("list %d: %+v has become %+v", i, l.was[k], v)
			}
		}
	}
	if views < 5000 {
		t.Errorf("%d views: too few to show anything", views)
	}
}

// What a list of all Services costs the engine's goroutine: bytes for each Service, and no look
// at any. A change after it copies its own Service alone.
func TestWhatAListCosts(t *testing.T) {
	const services, most = 10_000, 20 // bytes of each: a pointer, and the allocator's classes
	tr := track.New()
	tr.SetHost(host("a"))
	for i := range services {
		n := fmt.Sprint("s", i)
		tr.Set(service(n, fmt.Sprintf("10.%d.%d.%d", 96+i>>16, byte(i>>8), byte(i)), 80))
		tr.Set(slice(n+"-1", n, 80, "10.0.0.1"))
	}
	tr.Flush()
	cost := func(f func()) (bytes, objects uint64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc, after.Mallocs - before.Mallocs
	}
	least := func(f func()) (bytes, objects uint64) { // what the runtime does meanwhile is not counted
		bytes, objects = cost(f)
		for range 9 {
			b, o := cost(f)
			bytes, objects = min(bytes, b), min(objects, o)
		}
		return bytes, objects
	}
	var list []*track.View
	bytes, objects := least(func() { list = tr.Unsorted() })
	t.Logf("a list: %d bytes in %d objects", bytes, objects)
	if len(list) != services || bytes > most*services || objects > 4 {
		t.Errorf("a list of %d: %d bytes in %d objects", len(list), bytes, objects)
	}
	change := func() {
		tr.Set(slice("s1-1", "s1", 80, "10.0.0.2"))
		tr.Flush()
	}
	alone, _ := least(change)
	bytes, _ = least(func() {
		list = tr.Unsorted()
		change()
	})
	t.Logf("a change: %d bytes, after a list %d with it", alone, bytes)
	if bytes > alone+most*services+1000 {
		t.Errorf("a change after a list: %d bytes with it, %d without", bytes, alone)
	}
}
