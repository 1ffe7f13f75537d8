// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// ServiceCIDRs implements dataplane.Compiler.
func (fronts) ServiceCIDRs(k, v string) (all []netip.Prefix) {
	if p, err := netip.ParsePrefix(k); err == nil && v == "drop" {
		all = append(all, p)
	}
	return all
}

// withRanges makes an engine use the ranges of its ServiceCIDRs, and those of its Node.
func withRanges(o *engine.Options) {
	o.Host = func(n *model.Node, cidrs []*model.ServiceCIDR) (*model.Host, []model.Problem) {
		h := &model.Host{Name: "here"}
		if n != nil {
			h.IPs = n.IPs
		}
		for _, c := range cidrs {
			h.ServiceCIDRs = append(h.ServiceCIDRs, c.CIDRs...)
		}
		h.ServiceCIDRs = model.Canonical(h.ServiceCIDRs)
		return h, nil
	}
}

func cidr(name string, ranges ...string) *model.ServiceCIDR {
	c := &model.ServiceCIDR{Name: name}
	for _, r := range ranges {
		c.CIDRs = append(c.CIDRs, netip.MustParsePrefix(r))
	}
	return c
}

// drops are the ranges in which unallocated addresses are dropped.
func drops(kernel *memory.Driver[string, string]) (all []string) {
	kernel.Do(func() {
		for _, k := range slices.Sorted(maps.Keys(kernel.Objects)) {
			if kernel.Objects[k] == "drop" {
				all = append(all, k)
			}
		}
	})
	return all
}

// An earlier run has programmed ranges of cluster IPs, and the API server cannot say which there
// are: they stay, whatever else changes, until it can.
func TestInstalledRangesStayWhileServiceCIDRsAreUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["10.96.0.0/16"], kernel.Objects["10.97.0.0/16"] = "drop", "drop"
		b := startOn(t, kernel, withRanges)
		expect := func(when string, want ...string) {
			t.Helper()
			sleep(time.Hour)
			if got := drops(kernel); !slices.Equal(got, want) {
				t.Errorf("%s: ranges %v, want %v", when, got, want)
			}
		}
		b.Unread(model.Unread{ServiceCIDRs: true})
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		expect("unknown", "10.96.0.0/16", "10.97.0.0/16")
		if kernel.Objects["10.96.0.1:80"] == "" {
			t.Error("Services wait for ServiceCIDRs")
		}
		b.Set(&model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
		b.Set(cidr("one", "10.98.0.0/16"))
		expect("one of them known", "10.96.0.0/16", "10.97.0.0/16", "10.98.0.0/16")
		b.Set(cidr("two", "10.96.0.0/16"))
		b.Unread(model.Unread{})
		expect("read", "10.96.0.0/16", "10.98.0.0/16")
		b.Unread(model.Unread{ServiceCIDRs: true})
		b.Delete(&model.ServiceCIDR{Name: "two"})
		expect("unknown again, and one deleted", "10.98.0.0/16")
	})
}

// A server that has no ServiceCIDRs is not one that cannot say which there are.
func TestNoServiceCIDRsRemoveInstalledRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["10.96.0.0/16"] = "drop"
		b := startOn(t, kernel, withRanges)
		b.Unread(model.Unread{})
		b.Synced(true)
		synctest.Wait()
		if got := drops(kernel); len(got) > 0 {
			t.Errorf("ranges %v", got)
		}
	})
}

// What an earlier run has programmed depends on the Node and on routes: while they are unknown
// nothing is written, unless there is nothing to keep.
func TestWhatDependsOnLateInputsStays(t *testing.T) {
	for _, c := range []struct {
		name      string
		unread    model.Unread
		empty     bool
		ephemeral bool
		waits     bool
	}{
		{name: "Node", unread: model.Unread{Node: true}, waits: true},
		{name: "routes", unread: model.Unread{Routes: true}, waits: true},
		{name: "ServiceCIDRs", unread: model.Unread{ServiceCIDRs: true}},
		{name: "all", unread: model.Unread{Node: true, Routes: true, ServiceCIDRs: true}, waits: true},
		{name: "nothing to keep", unread: model.Unread{Node: true, Routes: true}, empty: true},
		{name: "nothing that serves without a process", unread: model.Unread{Node: true, Routes: true}, ephemeral: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kernel := newKernel()
				if !c.empty {
					kernel.Objects["10.96.0.1:80"] = "as an earlier run knew it"
				}
				was := maps.Clone(kernel.Objects)
				b := startOn(t, kernel, func(o *engine.Options) { o.Mode.Ephemeral = c.ephemeral })
				b.Set(service("a", "10.96.0.1"))
				b.Unread(c.unread)
				b.Synced(false)
				sleep(time.Minute)
				s := b.Status()
				if waits := kernel.Commits == 0 && maps.Equal(kernel.Objects, was); waits != c.waits {
					t.Fatalf("waits %t, want %t: %v", waits, c.waits, kernel.Objects)
				}
				if (s.Awaited != "") != c.waits || s.SourceSynced == c.waits || s.Synced == c.waits {
					t.Errorf("status %+v", s)
				}
				b.Unread(model.Unread{})
				b.Synced(true)
				synctest.Wait()
				if s := b.Status(); kernel.Objects["10.96.0.1:80"] != "reject" || s.Awaited != "" || !s.Synced {
					t.Errorf("all is read: %v, %+v", kernel.Objects, s)
				}
			})
		})
	}
}

// A kind that never comes is done without in the end: endpoints that have gone meanwhile harm
// more.
func TestLateInputsAreNotAwaitedForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["10.96.0.1:80"] = "as an earlier run knew it"
		b := startOn(t, kernel, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Unread(model.Unread{Routes: true})
		b.Synced(true)
		sleep(5*time.Minute - 2*time.Second)
		if s := b.Status(); s.Awaited == "" || s.Writes != 0 { // the kernel is the engine's to read
			t.Fatalf("not awaited: %+v", s)
		}
		sleep(5 * time.Second)
		if s := b.Status(); kernel.Objects["10.96.0.1:80"] != "reject" || !s.Synced || s.Awaited != "" {
			t.Errorf("%v, %+v", kernel.Objects, s)
		}
	})
}

// Some inputs of a restart cannot be read, and of a Service there is no EndpointSlice: it may be
// among them, so that what is installed stays. A Service of which nothing is installed is
// rejected as ever.
func TestEndpointsThatCannotBeReadStay(t *testing.T) {
	const was = "[as an earlier run knew them]"
	for _, c := range []struct {
		name   string
		change func(*bench)
		want   string
	}{
		{"nothing", func(*bench) {}, was},
		{"another Service changes", func(b *bench) { b.Set(service("c", "10.96.0.3")) }, was},
		{"the Service changes", func(b *bench) {
			changed := service("a", "10.96.0.1")
			changed.Ports[0].NodePort, changed.Type = 30080, model.NodePort
			b.Set(changed)
		}, was},
		{"its slice comes", func(b *bench) { b.Set(slice("a-1", "a", "10.0.0.1", time.Now())) }, "[{10.0.0.1:8080 false true 0}]"},
		{"everything is read", func(b *bench) { b.Unread(model.Unread{}); b.Synced(true) }, "reject"},
		{"the Service goes", func(b *bench) { b.Delete(&model.Service{Name: model.ServiceName{Namespace: "ns", Name: "a"}}) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kernel := newKernel()
				kernel.Objects["10.96.0.1:80"] = was
				b := startOn(t, kernel, nil)
				b.Set(service("a", "10.96.0.1"))
				b.Set(service("b", "10.96.0.2"))
				b.Unread(model.Unread{Endpoints: true})
				b.Synced(false)
				sleep(time.Minute)
				if got := kernel.Objects["10.96.0.1:80"]; got != was {
					t.Fatalf("at first: %q", got)
				}
				c.change(b)
				sleep(time.Minute)
				if got := kernel.Objects["10.96.0.1:80"]; got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
				if got := kernel.Objects["10.96.0.2:80"]; got != "reject" {
					t.Errorf("another Service: %q", got)
				}
				if s := b.Status(); !s.Synced || s.Err != nil {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

// A Service with two IP families has EndpointSlices of each: one that cannot be read may be of
// the family that has none.
func TestEndpointsOfAFamilyThatCannotBeReadStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at, was = "[fd00::1]:80", "[as an earlier run knew them]"
		kernel := newKernel()
		kernel.Objects[at] = was
		b := startOn(t, kernel, nil)
		dual := service("a", "10.96.0.1")
		dual.ClusterIPs = append(dual.ClusterIPs, netip.MustParseAddr("fd00::1"))
		b.Set(dual)
		b.Set(slice("a-1", "a", "10.0.0.1", time.Now()))
		b.Unread(model.Unread{Endpoints: true})
		b.Synced(false)
		sleep(time.Minute)
		if got := kernel.Objects[at]; got != was {
			t.Errorf("IPv6: %q", got)
		}
		if got, want := kernel.Objects["10.96.0.1:80"], "[{10.0.0.1:8080 false true 0}]"; got != want {
			t.Errorf("IPv4: %q, want %q", got, want)
		}
		b.Unread(model.Unread{})
		b.Synced(true)
		sleep(time.Minute)
		if got := kernel.Objects[at]; got != "reject" {
			t.Errorf("IPv6, when everything is read: %q", got)
		}
	})
}

// While endpoints cannot be read, what an earlier run has left of a Service is in one data plane
// alone: no other one takes over, until they are read.
func TestNoSwitchWhileEndpointsCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["10.96.0.1:80"] = "[as an earlier run knew them]"
		b := startOn(t, kernel, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Unread(model.Unread{Endpoints: true})
		b.Synced(false)
		synctest.Wait()
		other, next := second()
		if _, err := b.Switch(t.Context(), engine.DataPlane{Backend: next}); !errors.Is(err, engine.ErrWithheld) || !strings.Contains(err.Error(), "ns/a") {
			t.Errorf("switched: %v, %v", err, other.Objects)
		}
		if got := kernel.Objects["10.96.0.1:80"]; got != "[as an earlier run knew them]" {
			t.Errorf("after it: %q", got)
		}
		b.Set(slice("a-1", "a", "10.0.0.1", time.Now()))
		b.Unread(model.Unread{})
		b.Synced(true)
		synctest.Wait()
		old, err := b.Switch(t.Context(), engine.DataPlane{Backend: next})
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		if got, want := other.Objects["10.96.0.1:80"], "[{10.0.0.1:8080 false true 0}]"; got != want {
			t.Errorf("next has %q, want %q", got, want)
		}
	})
}

// Where several sources have a problem with one Service its state shows that of the first by
// name, and of that the first.
func TestOneProblemOfSeveralIsShown(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			b := start(t, nil)
			b.Set(service("web", "10.96.0.1"))
			for _, source := range []string{"d", "b", "a", "c"} {
				var ps []model.Problem
				for i := range 3 {
					ps = append(ps, model.Problem{Object: "Service ns/web", Why: model.WhyInvalid, Detail: fmt.Sprint(source, i)})
				}
				b.Problems(source, ps)
			}
			b.Synced(true)
			synctest.Wait()
			var shown []string
			for _, s := range b.syncs {
				for _, c := range s.StateChanges {
					shown = append(shown, c.Detail)
				}
			}
			if want := (model.Problem{Object: "Service ns/web", Why: model.WhyInvalid, Detail: "a0"}).Text(); !slices.Equal(shown, []string{want}) {
				t.Fatalf("shown %q, want %q", shown, want)
			}
		})
	}
}
