// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// stopped ends the returned context at the first call of a function, which HNS takes a while
// for.
func (r *rig) stopped(name string, takes time.Duration) context.Context {
	ctx, cancel := context.WithCancel(r.Context())
	r.emu.Hook(func(c *hnsemu.Call) hns.Code {
		if c.Name == name && ctx.Err() == nil {
			cancel()
			time.Sleep(takes)
		}
		return 0
	})
	return ctx
}

// journals demands that the journal names the load balancer of a VIP.
func (r *rig) journals(vip string) {
	r.Helper()
	text, err := os.ReadFile(r.settings.Journal)
	if id := r.balancer(vip).ID; err != nil || !strings.Contains(string(text), "lb "+id+"\n") {
		r.Errorf("%s of %s is not in the journal (%v):\n%s", id, vip, err, text)
	}
}

// answered demands that the journal has no creation without an end.
func (r *rig) answered() {
	r.Helper()
	text, err := os.ReadFile(r.settings.Journal)
	if tries, done := strings.Count(string(text), "try "), strings.Count(string(text), "done "); err != nil || tries != done {
		r.Errorf("%d tries and %d ends in the journal (%v):\n%s", tries, done, err, text)
	}
}

// The proxy is told to stop while HNS makes a load balancer: the journal names it before the
// process ends, so that the next one deletes it with its Service. What had not begun does not.
func TestAStopWhileABalancerIsMade(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.set("new", "10.96.0.12", "10.244.1.2")
		r.set("next", "10.96.0.13", "10.244.1.2")
		begun := time.Now()
		r.backend.Sync(r.stopped("HcnCreateLoadBalancer", time.Second))
		if took := time.Since(begun); took != time.Second {
			r.Errorf("the stop took %s", took)
		}
		if n := r.emu.Calls("HcnCreateLoadBalancer"); n != 1 {
			r.Errorf("%d load balancers were made, want the one that was under way", n)
		}
		vip := "10.96.0.12"
		if r.served(vip) == "" {
			vip = "10.96.0.13"
		}
		r.journals(vip)
		delete(r.ports, "new")
		delete(r.ports, "next")
		r.restart()
		r.begin()
		served(r)
		if n := len(r.emu.Balancers()); n != 2 {
			r.Errorf("%d load balancers, want 2", n)
		}
	})
}

// Where HNS cannot change a load balancer in place, a stop between the deletion of the old one
// and the creation of the new one would leave the Service without any until the next start.
// An audit that is reading at that time is abandoned, and does not keep the new one away.
func TestAStopWhileABalancerIsReplaced(t *testing.T) {
	for _, audit := range []bool{false, true} {
		on(t, hnsemu.WS2019, func(r *rig) {
			web(r)
			ctx, cancel := context.WithCancel(r.Context())
			release, read := make(chan struct{}), make(chan error, 1)
			r.emu.Hook(func(c *hnsemu.Call) hns.Code {
				switch c.Name {
				case "HcnEnumerateLoadBalancers":
					<-release
				case "HcnDeleteLoadBalancer":
					cancel()
					time.Sleep(time.Second)
				}
				return 0
			})
			if audit {
				go func() { read <- r.driver.Observe(ctx, func(hns.Key, hns.Value) {}) }()
				time.Sleep(time.Millisecond)
			}
			r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
			r.backend.Sync(ctx)
			if audit {
				if err := <-read; !errors.Is(err, context.Canceled) {
					r.Errorf("the audit: %v", err)
				}
			}
			r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
			r.journals("10.96.0.10")
			close(release)
			time.Sleep(time.Second)
			r.emu.Hook(nil)
			r.resume()
		})
	}
}

// A stop waits for HNS for a few seconds only. What it makes later has no id in the journal,
// which says for which frontend it may have made something: the next process owns that.
func TestAStopWhileHNSHangs(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.set("new", "10.96.0.12", "10.244.1.2")
		begun := time.Now()
		if _, err := r.backend.Sync(r.stopped("HcnCreateLoadBalancer", time.Minute)); !errors.Is(err, ledger.ErrUnknown) {
			r.Errorf("got %v", err)
		}
		if took := time.Since(begun); took != 4*time.Second {
			r.Errorf("the stop took %s", took)
		}
		delete(r.ports, "new")
		r.restart() // at once: HNS is still at it
		time.Sleep(2 * time.Minute)
		r.emu.Down(true) // the handles of a process go with it
		r.emu.Down(false)
		r.begin()
		served(r)
		if n := len(r.emu.Balancers()); n != 2 {
			r.Errorf("%d load balancers, want 2", n)
		}
	})
}

// Reads are abandoned at once.
func TestAStopWhileHNSIsRead(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		begun := time.Now()
		err := r.driver.Observe(r.stopped("HcnQueryLoadBalancerProperties", time.Minute), func(hns.Key, hns.Value) {})
		if !errors.Is(err, context.Canceled) || time.Since(begun) != 0 {
			r.Errorf("after %s: %v", time.Since(begun), err)
		}
		r.emu.Hook(nil)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3") // a caller that has gone holds up no change
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
		if err := r.driver.Observe(r.Context(), func(hns.Key, hns.Value) {}); !errors.Is(err, ledger.ErrUnknown) {
			r.Errorf("a second read while one hangs: %v", err)
		}
		time.Sleep(2 * time.Minute)
		r.audit()
	})
}

// HNS hangs in a read when the proxy stops: it is asked for nothing more, not even to close what is
// held open.
func TestAStopWhileAReadHangs(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.set("web", "10.96.0.10", "10.244.2.7") // its endpoint is made, for which the network is open
		r.sync()
		if err := r.driver.Observe(r.stopped("HcnQueryLoadBalancerProperties", time.Minute), func(hns.Key, hns.Value) {}); !errors.Is(err, context.Canceled) {
			r.Fatal(err)
		}
		r.emu.Hook(func(*hnsemu.Call) hns.Code {
			time.Sleep(time.Minute)
			return 0
		})
		begun := time.Now()
		if err := r.driver.Close(); err != nil || time.Since(begun) != 0 {
			r.Errorf("the driver was closed after %s: %v", time.Since(begun), err)
		}
		r.emu.Hook(nil)
		time.Sleep(2 * time.Minute)
	})
}

// The process is killed after HNS has made a load balancer and before the journal names it,
// and its Service goes before the next start, or there is only a cleanup. What other programs
// have made is theirs, also where HNS refused to make one beside it.
func TestAProcessIsKilledWhileABalancerIsMade(t *testing.T) {
	for _, cleanup := range []bool{false, true} {
		on(t, hnsemu.WS2025, func(r *rig) {
			foreign := r.others("10.96.0.99", "10.96.0.98")
			web(r)
			r.set("taken", "10.96.0.99", "10.244.1.2")
			r.backend.Sync(r.Context())
			r.unset("taken")
			r.sync()
			r.set("new", "10.96.0.12", "10.244.1.2")
			r.refuse("HcnQueryLoadBalancerProperties", serverGone, 1)
			r.fails("outcome unknown") // the process ends here
			delete(r.ports, "new")
			r.emu.Hook(nil)
			r.restart()
			want := 3
			if cleanup {
				want = 1
				r.backend.Close()
				if err := hns.Remove(r.Context(), r.emu.Client(), r.settings); err != nil {
					r.Fatal(err)
				}
				r.restart()
			} else {
				r.begin()
				served(r)
			}
			if all := r.emu.Balancers(); len(all) != want || !hasID(all, foreign) {
				r.Errorf("%d load balancers, want %d: %v", len(all), want, all)
			}
			r.restart()
			r.answered()
		})
	}
}

func hasID(all []hns.LoadBalancer, id string) bool {
	for _, lb := range all {
		if lb.ID == id {
			return true
		}
	}
	return false
}
