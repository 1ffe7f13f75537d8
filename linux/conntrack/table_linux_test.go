// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/flows/flowtest"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

func gone(front string, endpoints ...string) flows.Match {
	return match(flows.OnlyGone, front, endpoints...)
}

func reach(r flows.Reach, front string, keep ...string) flows.Match {
	m := match(r, front, keep...)
	m.Keep, m.Gone = m.Gone, nil
	return m
}

// entries is a table with a bit of everything.
var entries = []made{
	udp("10.244.1.10:4000", "10.96.0.10:53", "10.244.1.2:5353"),
	udp("10.244.1.10:4001", "10.96.0.10:53", "10.244.1.2:5353"),
	udp("10.244.1.10:4002", "10.96.0.10:53", "10.244.2.2:5353"),
	udp("10.244.1.10:4003", "10.96.0.10:53", ""),
	udp("10.244.1.10:4004", "203.0.113.5:53", "10.244.1.2:5353"),
	udp("192.0.2.100:4005", "192.0.2.1:30053", "10.244.1.2:5353"),
	udp("192.0.2.100:4006", "192.0.2.1:30053", ""),
	udp("192.0.2.100:4007", "198.51.100.7:30053", "10.244.1.2:5353"),
	udp("192.0.2.100:4008", "198.51.100.8:30053", ""),
	udp("10.244.1.10:4009", "10.244.1.2:5353", ""),
	{proto: model.TCP, src: "10.244.1.10:4000", dst: "10.96.0.10:53", replySrc: "10.244.1.2:5353"},
	{proto: model.UDP, src: "10.244.1.10:4010", dst: "10.96.0.10:53", replySrc: "10.244.1.2:5353", zone: 7},
	udp("[fd00::10]:4000", "[fd00:96::a]:53", "[fd00:1::2]:5353"),
	udp("[fd00::10]:4001", "[fd00:96::a]:53", "[fd00:2::2]:5353"),
	udp("[fd00::10]:4002", "[fd00:96::a]:53", ""),
	udp("[fd00::10]:4003", "[2001:db8::1]:30053", "[fd00:1::2]:5353"),
}

// cases are inputs of Delete.
var cases = []struct {
	name  string
	stale []flows.Match
}{
	{"nothing", nil},
	{"no such front", []flows.Match{reach(flows.Everything, "10.96.0.99:53")}},
	{"endpoint gone from a front", []flows.Match{gone("10.96.0.10:53", "10.244.1.2:5353")}},
	{"endpoint gone from three fronts", []flows.Match{
		gone("10.96.0.10:53", "10.244.1.2:5353"), gone("203.0.113.5:53", "10.244.1.2:5353"), gone("0.0.0.0:30053", "10.244.1.2:5353"),
	}},
	{"two endpoints gone", []flows.Match{gone("10.96.0.10:53", "10.244.1.2:5353", "10.244.2.2:5353")}},
	{"front removed", []flows.Match{reach(flows.Translated, "10.96.0.10:53")}},
	{"front added", []flows.Match{reach(flows.Everything, "10.96.0.10:53", "10.244.2.2:5353")}},
	{"node port added", []flows.Match{{
		Proto: model.UDP, Frontend: netip.MustParseAddrPort("0.0.0.0:30053"), Reach: flows.Everything,
		Own: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}}},
	{"IPv6 endpoint gone", []flows.Match{gone("[fd00:96::a]:53", "[fd00:1::2]:5353"), gone("[::]:30053", "[fd00:1::2]:5353")}},
	{"both families", []flows.Match{reach(flows.Everything, "[fd00:96::a]:53"), reach(flows.Translated, "203.0.113.5:53")}},
	{"hundreds of endpoints gone", []flows.Match{gone("10.96.0.10:53", append(numbered("10.243.1.%d:53", 200), "10.244.1.2:5353")...)}},
	{"hundreds of fronts removed", many(flows.Translated, 200)},
	{"hundreds of ports removed", each(flows.Translated, append(numbered("10.97.0.1:%d", 300), "10.96.0.10:53"))},
}

// kernels are this kernel and older ones, played by what they make of a request.
var kernels = []struct {
	name    string
	filter  func(filter, *netlink.Writer)
	filters bool
}{
	{"this kernel", filter.write, true},
	{"kernel that does not see filters", func(filter, *netlink.Writer) {}, false},
	{"kernel that refuses filters", func(f filter, w *netlink.Writer) {
		f.write(w)
		if f.proto != 0 { // a flag that no kernel knows, for the original direction
			binary.NativeEndian.PutUint32(w.Buf[len(w.Buf)-12:], 1<<31)
		}
	}, false},
}

// Exactly the stale entries go; all others are the same, byte for byte.
func TestDelete(t *testing.T) {
	for _, k := range kernels {
		for _, c := range cases {
			t.Run(k.name+"/"+c.name, func(t *testing.T) {
				inNetns(t, func(table *Table) {
					createAll(t, entries...)
					table.writeFilter = k.filter
					before := snapshot(t)
					if len(before) != len(entries) {
						t.Fatalf("%d entries were made, want %d", len(before), len(entries))
					}
					want := wanted(t, before, c.stale)
					deleted, err := deleteStale(t.Context(), table, c.stale)
					if err != nil {
						t.Fatal(err)
					}
					after := snapshot(t)
					if !maps.EqualFunc(after, want, bytes.Equal) {
						t.Errorf("left %v\nwant %v", flowsOf(t, after), flowsOf(t, want))
					}
					if deleted != len(before)-len(want) {
						t.Errorf("%d deleted, want %d", deleted, len(before)-len(want))
					}
				})
			})
		}
	}
}

func wanted(t *testing.T, before map[string][]byte, stale []flows.Match) map[string][]byte {
	t.Helper()
	want := maps.Clone(before)
	maps.DeleteFunc(want, func(_ string, body []byte) bool {
		e, err := parseEntry(body)
		if err != nil {
			t.Fatal(err)
		}
		for i := range stale {
			if stale[i].Stale(e.flow) {
				return true
			}
		}
		return false
	})
	return want
}

// What a kernel cannot do is found out once.
func TestFilterSupportIsRemembered(t *testing.T) {
	for _, k := range kernels {
		t.Run(k.name, func(t *testing.T) {
			inNetns(t, func(table *Table) {
				createAll(t, entries...)
				table.writeFilter = k.filter
				if _, err := deleteStale(t.Context(), table, []flows.Match{gone("203.0.113.5:53", "10.244.1.2:5353")}); err != nil {
					t.Fatal(err)
				}
				if table.canFilter != k.filters {
					t.Errorf("filters: %v, want %v", table.canFilter, k.filters)
				}
			})
		})
	}
}

// The kernel compares what the filter says, no less and no more. Where it does
// less, for ports of protocols other than TCP and UDP, Index.Stale makes up for it.
func TestKernelFilters(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, c := range []struct {
		f    filter
		want func(flows.Flow) bool
	}{
		{filter{family: model.IPv4, proto: model.UDP}, func(flows.Flow) bool { return true }},
		{filter{family: model.IPv4, proto: model.TCP}, func(flows.Flow) bool { return true }},
		{filter{family: model.IPv4, proto: model.UDP, dst: at("10.96.0.10:53")}, func(f flows.Flow) bool { return f.Dst == at("10.96.0.10:53") }},
		{
			filter{family: model.IPv4, proto: model.UDP, dst: filterable(at("0.0.0.0:30053"))},
			func(f flows.Flow) bool { return f.Dst.Port() == 30053 },
		},
		{filter{family: model.IPv4, proto: model.UDP, from: at("10.244.1.2:5353")}, func(f flows.Flow) bool { return f.From == at("10.244.1.2:5353") }},
		{filter{family: model.IPv4, proto: model.UDP, dst: at("10.96.0.10:53"), from: at("10.244.2.2:5353")}, func(f flows.Flow) bool {
			return f.Dst == at("10.96.0.10:53") && f.From == at("10.244.2.2:5353")
		}},
		{filter{family: model.IPv6, proto: model.UDP, dst: filterable(at("[fd00:96::a]:53"))}, func(f flows.Flow) bool { return f.Dst.Port() == 53 }},
		{filter{family: model.IPv6, proto: model.UDP, from: filterable(at("[fd00:1::2]:5353"))}, func(f flows.Flow) bool { return f.From.Port() == 5353 }},
	} {
		inNetns(t, func(table *Table) {
			createAll(t, entries...)
			want, got := map[flows.Flow]int{}, map[flows.Flow]int{}
			for _, m := range entries {
				f := m.flow()
				if model.FamilyOf(f.Dst.Addr()) == c.f.family && f.Proto == c.f.proto && c.want(f) {
					want[f]++
				}
			}
			if err := table.dump(t.Context(), c.f, func(e *entry) { got[e.flow]++ }); err != nil {
				t.Fatal(err)
			}
			if len(want) == 0 || !maps.Equal(got, want) {
				t.Errorf("%+v: got %v, want %v", c.f, got, want)
			}
		})
	}
}

// A flow that new rules made in place of a stale one, after the dump, has the same
// original tuple and often the same memory, hence the same id.
func TestRecreatedFlowsStay(t *testing.T) {
	inNetns(t, func(table *Table) {
		again := entries[0]
		again.replySrc = "10.244.2.2:5353"
		for range 20 {
			createAll(t, entries[0])
			err := table.dump(t.Context(), filter{family: model.IPv4}, table.delete)
			if err != nil {
				t.Fatal(err)
			}
			command(t, "", "conntrack", "-F")
			createAll(t, again)
			deleted, err := table.flush(t.Context())
			if err != nil || deleted != 0 {
				t.Errorf("deleted %d, %v; want none, as an entry that is gone is no error", deleted, err)
			}
			if left := flowsOf(t, snapshot(t)); left[again.flow()] != 1 {
				t.Fatalf("left %v, want the new flow", left)
			}
			command(t, "", "conntrack", "-F")
		}
	})
}

func TestManyStaleFlows(t *testing.T) {
	inNetns(t, func(table *Table) {
		const n = 1000
		create(t, n, func(i int) made {
			return udp(fmt.Sprintf("10.244.1.10:%d", 1000+i), "10.96.0.10:53", fmt.Sprintf("10.244.%d.2:53", i%2))
		})
		deleted, err := deleteStale(t.Context(), table, []flows.Match{gone("10.96.0.10:53", "10.244.0.2:53")})
		if err != nil || deleted != n/2 {
			t.Errorf("deleted %d, %v; want %d", deleted, err, n/2)
		}
		if left := len(snapshot(t)); left != n/2 {
			t.Errorf("%d left, want %d", left, n/2)
		}
	})
}

// deleteStale deletes what matches state, as they are.
func deleteStale(ctx context.Context, table *Table, matches []flows.Match) (int, error) {
	return table.Delete(ctx, matches, flowtest.IndexOf(matches).Stale)
}

// A Delete whose context ends leaves the table usable, wherever it was.
func TestContext(t *testing.T) {
	inNetns(t, func(table *Table) {
		create(t, 2000, func(i int) made { return udp(fmt.Sprintf("10.244.1.10:%d", 1000+i), "10.96.0.10:53", "") })
		stale := []flows.Match{reach(flows.Everything, "10.96.0.10:53")}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := deleteStale(ctx, table, stale); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		seen := 0
		err := table.dump(ctx, filter{family: model.IPv4}, func(*entry) {
			seen++
			cancel()
		})
		if !errors.Is(err, context.Canceled) || seen == 2000 {
			t.Errorf("a dump whose context ends: %v after %d entries", err, seen)
		}
		deleted, err := deleteStale(t.Context(), table, stale)
		if left := len(snapshot(t)); err != nil || left != 0 {
			t.Errorf("afterwards: deleted %d, %v, %d left", deleted, err, left)
		}
	})
}
