// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

func slice(n, svc, ip string, triggered time.Time) *model.Slice {
	return &model.Slice{
		Name: model.SliceName{Namespace: "ns", Name: n}, Service: svc, Triggered: triggered,
		Ports:     []model.SlicePort{{Proto: model.TCP, Port: 8080}},
		Endpoints: []model.SliceEndpoint{{Addr: netip.MustParseAddr(ip), State: model.Ready | model.Serving}},
	}
}

// refuse makes the kernel refuse an object until the returned function is called.
func (b *bench) refuse(key string) (repair func()) {
	b.fail(map[string]error{key: errors.New("no space")})
	return func() { b.fail(nil) }
}

func (b *bench) standings() string {
	var lines []string
	for _, s := range b.syncs {
		for _, st := range s.StateChanges {
			line := st.Service.Name + " " + st.Was.String() + ">" + st.State.String()
			if st.Gone {
				line += " gone"
			}
			lines = append(lines, line)
		}
	}
	b.syncs = nil
	return strings.Join(lines, "; ")
}

func TestStatesAreReportedWhenTheyChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		expect := func(what, want string, counts ...int) {
			t.Helper()
			sleep(time.Second)
			if got := b.standings(); got != want {
				t.Errorf("%s: reported %q, want %q", what, got, want)
			}
			if got := b.Status().Services; fmt.Sprint(got) != fmt.Sprint(counts) {
				t.Errorf("%s: counts %v, want %v", what, got, counts)
			}
		}
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		expect("all well", "", 2, 0, 0)
		relent := b.refuse("10.96.0.3:80")
		b.Set(service("c", "10.96.0.3"))
		expect("refused", "c Programmed>Failing", 2, 0, 1)
		b.Set(service("d", "10.96.0.1"))
		expect("an address twice", "d Programmed>Partial", 2, 1, 1)
		relent()
		sleep(time.Minute)
		expect("retried", "c Failing>Programmed", 3, 1, 0)
		b.Delete(&model.Service{Name: model.ServiceName{Namespace: "ns", Name: "d"}})
		expect("gone", "d Partial>Programmed gone", 3, 0, 0)
		b.Delete(&model.Service{Name: model.ServiceName{Namespace: "ns", Name: "a"}})
		expect("a good one gone", "", 2, 0, 0)

		rejected := []model.Problem{
			{Object: "Service ns/b", Why: model.WhyBadAddress, Detail: "spec.externalIPs[0]: 127.0.0.1"},
			{Object: "Service ns/unknown", Why: model.WhyInvalid, Detail: "spec.prots: unknown field"},
			{Object: "EndpointSlice ns/b", Why: model.WhyBadAddress, Detail: "endpoints[0]"},
			{Object: "EndpointSlice ns/x", Why: model.WhyBadAddress, Detail: "endpoints[0]", Of: model.ServiceName{Namespace: "ns", Name: "c"}},
		}
		b.Problems("manifests", rejected[:3])
		expect("an external IP rejected", "b Programmed>Partial", 1, 1, 0)
		b.Problems("manifests", rejected)
		expect("an endpoint of a slice rejected", "c Programmed>Partial", 0, 2, 0)
		b.Problems("manifests", rejected[:2])
		expect("and corrected", "c Partial>Programmed", 1, 1, 0)
		b.Set(service("unknown", "10.96.0.9"))
		expect("a Service that was unknown", "unknown Programmed>Partial", 1, 2, 0)
		b.Problems("manifests", nil)
		expect("corrected", "b Partial>Programmed; unknown Partial>Programmed", 3, 0, 0)
	})
}

// Network programming latency: only changes of this run, once each, when they
// are in effect.
func TestTriggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := time.Now().Add(-time.Minute)
		b := start(t, nil)
		told := func() (names string) {
			for _, s := range b.syncs {
				for _, tr := range s.Triggered {
					names += fmt.Sprintf("%s/%s@%s ", tr.Service.Name, tr.Family, time.Since(tr.At))
				}
			}
			b.syncs = nil
			return strings.TrimSpace(names)
		}
		expect := func(what, want string) {
			t.Helper()
			synctest.Wait()
			if got := told(); got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		sleep(time.Second)
		b.Set(service("a", "10.96.0.1"))
		b.Set(slice("a-1", "a", "10.0.0.1", before))
		b.Synced(true)
		expect("an older change", "")
		at := time.Now()
		sleep(2 * time.Second)
		b.Set(slice("a-1", "a", "10.0.0.2", at))
		expect("a change", "a/IPv4@2s")
		b.Set(slice("a-1", "a", "10.0.0.2", at))
		expect("the same again", "")
		b.Set(slice("x-1", "x", "10.0.0.2", time.Now()))
		expect("of no Service", "")
		relent := b.refuse("10.96.0.1:80")
		b.Set(slice("a-1", "a", "10.0.0.3", time.Now()))
		expect("refused", "")
		relent()
		sleep(time.Second)
		if got := told(); !strings.HasPrefix(got, "a/IPv4@") {
			t.Errorf("retried: %q", got)
		}
	})
}

func TestStatusCountsWhatArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Set(slice("a-1", "a", "10.0.0.1", time.Time{}))
		b.Set(slice("a-2", "a", "10.0.0.2", time.Time{}))
		at := time.Now()
		sleep(time.Second)
		if s := b.Status(); s.Seen != (engine.Changes{Services: 1, Slices: 2}) || s.Done != (engine.Changes{}) || !s.LatestAt.Equal(at) {
			t.Errorf("before: %+v", s)
		}
		b.Synced(true)
		synctest.Wait()
		if s := b.Status(); s.Done != s.Seen || !s.LatestAt.Equal(at) {
			t.Errorf("after: %+v", s)
		}
		if s := b.syncs[0]; !s.Full || s.Ports != [2]int{1, 0} || s.Work.Verbs != [ledger.Verbs]int{2, 0, 0} {
			t.Errorf("first sync: %+v", s)
		}
		b.Set(slice("a-1", "a", "10.0.0.7", time.Time{}))
		synctest.Wait()
		if s := b.syncs[1]; s.Full || s.Work.Verbs != [ledger.Verbs]int{0, 1, 0} {
			t.Errorf("second sync: %+v", s)
		}
		b.kernel.Disturb(func(o map[string]string) { clear(o) })
		sleep(time.Second)
		if s := b.syncs[2]; s.Repaired != 2 || b.Status().Audits.Done != 1 {
			t.Errorf("repair: %+v, %+v", s, b.Status().Audits)
		}
	})
}

func TestLeavingFollowsTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		for _, leaving := range []bool{true, false} {
			b.Set(&model.Node{Name: "here", Leaving: leaving})
			b.Set(&model.Node{Name: "there", Leaving: !leaving})
			synctest.Wait()
			if b.Status().Leaving != leaving {
				t.Errorf("leaving: want %t", leaving)
			}
		}
	})
}
