// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

func suspects(ips ...string) model.Suspects {
	s := model.Suspects{}
	for _, ip := range ips {
		s[netip.MustParseAddr(ip)] = time.Time{}
	}
	return s
}

func TestSuspectsArePassedOver(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("a"))
	tr.Set(service("a", "10.96.0.1", 80))
	tr.Set(slice("a-1", "a", 80, "10.0.0.1", "10.0.0.2", "10.0.0.3"))
	tr.Set(service("b", "10.96.0.2", 80))
	tr.Set(slice("b-1", "b", 80, "10.0.0.4", "10.0.0.5"))
	tr.Flush()
	before := tr.Stats().Resolved
	tr.SetSuspects(suspects("10.0.0.2", "10.0.0.99"))
	want(t, tr, "~ns/a:p80 10.0.0.1 10.0.0.3")
	tr.SetSuspects(suspects("10.0.0.2", "10.0.0.5"))
	want(t, tr, "~ns/b:p80 10.0.0.4")
	tr.Set(slice("a-1", "a", 80, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.6")) // says nothing new of it
	want(t, tr, "~ns/a:p80 10.0.0.1 10.0.0.3 10.0.0.6")
	tr.SetSuspects(nil)
	want(t, tr, "~ns/a:p80 10.0.0.1 10.0.0.3 10.0.0.6 10.0.0.2; ~ns/b:p80 10.0.0.4 10.0.0.5")
	if n := tr.Stats().Resolved - before; n != 5 {
		t.Errorf("%d Services resolved, want those that have one that changed: 5", n)
	}
}

// An endpoint that answers again gets its share in steps, also of a Service that asks for
// no slow start.
func TestComeback(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	tr := track.New()
	tr.SetClock(func() time.Time { return now })
	tr.SetHost(host("a"))
	tr.Set(service("a", "10.96.0.1", 80))
	tr.Set(slice("a-1", "a", 80, "10.0.0.1", "10.0.0.2"))
	tr.SetSuspects(suspects("10.0.0.2"))
	tr.Flush()
	tr.SetSuspects(model.Suspects{netip.MustParseAddr("10.0.0.2"): now.Add(-4 * time.Second)}) // it may answer since
	var shares []int
	for {
		for _, d := range tr.Flush() {
			pool := d.New.Pools()[0]
			shares = append(shares, int(1000*pool.Share(1)/pool.Share(0)+0.5))
		}
		if tr.Next().IsZero() {
			break
		}
		now = tr.Next()
	}
	if want := "[400 500 600 700 800 900 1000]"; fmt.Sprint(shares) != want {
		t.Errorf("shares, in thousandths of another's: %v, want %s", shares, want)
	}
	if took := now.Sub(time.Unix(1_700_000_000, 0)); took != 6*time.Second {
		t.Errorf("it took %v", took)
	}
	before := tr.Stats().Resolved
	tr.SetSuspects(nil)
	if deltas := tr.Flush(); len(deltas) > 0 || tr.Stats().Resolved-before > 1 {
		t.Errorf("%d changes at the end", len(deltas))
	}
}

// What an EndpointSlice says of a suspect ends no suspicion: it is passed on, for the address to be asked.
func TestASourceChangesSuspects(t *testing.T) {
	set := func(change func(*model.Slice)) *model.Slice {
		s := slice("a-1", "a", 80, "10.0.0.1", "10.0.0.2", "10.0.0.3")
		change(s)
		return s
	}
	for _, c := range []struct {
		what   string
		change func(*track.Tracker)
		want   bool
	}{
		{"the same again", func(tr *track.Tracker) { tr.Set(set(func(*model.Slice) {})) }, false},
		{"another endpoint", func(tr *track.Tracker) { tr.Set(set(func(s *model.Slice) { s.Endpoints[0].State = 0 })) }, false},
		{"a condition", func(tr *track.Tracker) { tr.Set(set(func(s *model.Slice) { s.Endpoints[1].State = 0 })) }, true},
		{"the node", func(tr *track.Tracker) { tr.Set(set(func(s *model.Slice) { s.Endpoints[1].Node = "new" })) }, true},
		{"gone", func(tr *track.Tracker) { tr.Set(set(func(s *model.Slice) { s.Endpoints = s.Endpoints[:1] })) }, true},
		{"the slice gone", func(tr *track.Tracker) { tr.Delete(&model.Slice{Name: model.SliceName{Namespace: "ns", Name: "a-1"}}) }, true},
	} {
		tr := track.New()
		tr.SetHost(host("a"))
		tr.Set(service("a", "10.96.0.1", 80))
		tr.Set(set(func(*model.Slice) {}))
		tr.SetSuspects(suspects("10.0.0.2"))
		tr.Flush()
		c.change(tr)
		_, suspect := tr.Suspects()[netip.MustParseAddr("10.0.0.2")]
		if got := slices.Equal(tr.ChangedSuspects(), []netip.Addr{netip.MustParseAddr("10.0.0.2")}); got != c.want || !suspect {
			t.Errorf("%s: changed %t, suspect %t; want changed %t, and a suspect", c.what, got, suspect, c.want)
		}
		if more := tr.ChangedSuspects(); len(more) > 0 {
			t.Errorf("%s: %v again", c.what, more)
		}
	}
}

func TestRemote(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("a"))
	svc := service("a", "10.96.0.1", 80)
	svc.Type, svc.Ports[0].NodePort = model.NodePort, 30080
	tr.Set(svc)
	from := slice("a-1", "a", 80, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	for i, node := range []string{"here", "there", "there", ""} {
		from.Endpoints[i].Node = node
	}
	from.Endpoints[2].State = 0
	tr.Set(from)
	tr.Flush()
	for _, at := range []string{"10.96.0.1:80", "192.0.2.1:30080"} {
		if got := fmt.Sprint(tr.RemoteOf(netip.MustParseAddrPort(at), model.ServiceName{})); got != "[{10.0.0.2:8080 there ns/a} {10.0.0.4:8080  ns/a}]" {
			t.Errorf("%s: %s", at, got)
		}
	}
	if got := tr.RemoteOf(netip.MustParseAddrPort("10.96.0.1:81"), model.ServiceName{}); got != nil {
		t.Errorf("a port that no Service has: %v", got)
	}
	if got := tr.RemoteOf(netip.AddrPort{}, name("a")); len(got) != 2 {
		t.Errorf("by name: %v", got)
	}
}

// What is looked at for suspects are the slices that have them, each once, however many Services there are
// and however many slices of a dead node are changed at once.
func TestSuspectsCostTheirSlices(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("a"))
	silent := model.Suspects{}
	for n := range 20 {
		name, ip := fmt.Sprint("s", n), fmt.Sprint("10.0.0.", n+1)
		tr.Set(service(name, fmt.Sprint("10.96.0.", n+1), 80))
		tr.Set(slice(name+"-1", name, 80, ip, "10.0.1.1"))
		silent[netip.MustParseAddr(ip)] = time.Time{}
	}
	for n := range 1000 {
		other := fmt.Sprint("other", n)
		tr.Set(service(other, fmt.Sprintf("10.97.%d.%d", n/250, n%250), 80))
		tr.Set(slice(other+"-1", other, 80, "10.0.1.1"))
	}
	tr.Flush()
	tr.SetSuspects(silent)
	tr.Flush()
	if n := tr.Stats().Suspected; n != 20 {
		t.Errorf("%d slices looked at, want 20", n)
	}
	before := tr.Stats()
	for n := range 20 {
		name := fmt.Sprint("s", n)
		tr.Set(slice(name+"-1", name, 80, "10.0.1.1"))
	}
	tr.Flush()
	if now := tr.Stats(); now.Suspected > before.Suspected || now.Resolved-before.Resolved != 20 || len(tr.ChangedSuspects()) != 20 {
		t.Errorf("%+v before, %+v now", before, now)
	}
}
