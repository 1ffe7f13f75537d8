// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// hiding is a data plane whose endpoints never see a client's address.
type hiding struct{ fronts }

func (h hiding) Port(host *model.Host, p *model.Port, emit func(string, string)) []model.Gap {
	h.fronts.Port(host, p, emit)
	return []model.Gap{{Detail: "no client addresses", Source: true}}
}

func TestAGapOfTheModeIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []model.Problem
		b := start(t, func(o *engine.Options) {
			o.Backend = dataplane.New(hiding{}, memory.New[string](fronts{}.Equal, dataplane.Limits{}))
			o.Hooks.Problem = func(p model.Problem) { said = append(said, p) }
		})
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Set(service("c", "10.96.0.3"))
		b.Synced(true)
		synctest.Wait()
		b.Set(service("c", "10.96.0.4"))
		synctest.Wait()
		if len(said) != 1 || said[0].Object != "data plane" {
			t.Errorf("said: %v", said)
		}
		if n := b.Status().Services[model.Programmed]; n != 3 {
			t.Errorf("%d of 3 Services are Programmed", n)
		}
	})
}

// lacking is a data plane that can do no port whole.
type lacking struct{ fronts }

func (l lacking) Port(host *model.Host, p *model.Port, emit func(string, string)) []model.Gap {
	l.fronts.Port(host, p, emit)
	return []model.Gap{{Detail: "half of it"}}
}

func TestTheGapsOfALargeServiceAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []model.Problem
		b := start(t, func(o *engine.Options) {
			o.Backend = dataplane.New(lacking{}, memory.New[string](fronts{}.Equal, dataplane.Limits{}))
			o.Hooks.Problem = func(p model.Problem) { said = append(said, p) }
		})
		s := service("a", "10.96.0.1")
		s.Ports = nil
		for i := range 1000 {
			s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Proto: model.TCP, Port: uint16(i + 1)})
		}
		b.Set(s)
		b.Synced(true)
		synctest.Wait()
		if n := len(said); n != model.MaxProblems+1 || said[n-1].Detail != "980 more problems of its ports" {
			t.Errorf("%d problems were said, the last is %v", n, said[n-1])
		}
	})
}

// byHost is a data plane that cannot do a port whole where pods are detected by interface.
type byHost struct{ fronts }

func (b byHost) Port(host *model.Host, p *model.Port, emit func(string, string)) []model.Gap {
	b.fronts.Port(host, p, emit)
	if host.Pods.Interface == "" {
		return nil
	}
	return []model.Gap{{Detail: "not by interface"}}
}

// What another data plane, or the same one on a changed host, cannot do of a Service is said, though
// the Service has not changed; and not again with each change.
func TestGapsAreSaidWithoutAChangeOfTheService(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*testing.T, *bench, *model.Host)
		want   string
	}{
		{"another mode", func(t *testing.T, b *bench, _ *model.Host) {
			old, err := b.Switch(t.Context(), engine.DataPlane{Backend: dataplane.New(lacking{}, newKernel())})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { old.Close() })
		}, "ns/a: half of it"},
		{"another host", func(_ *testing.T, b *bench, h *model.Host) {
			h.Pods.Interface = "cbr0"
			b.HostChanged()
		}, "ns/a: not by interface"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said []model.Problem
				host := &model.Host{Name: "here"}
				b := start(t, func(o *engine.Options) {
					o.Backend = dataplane.New(byHost{}, newKernel())
					o.Hooks.Problem = func(p model.Problem) { said = append(said, p) }
					o.Host = func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem) {
						h := *host
						return &h, nil
					}
				})
				b.Set(service("a", "10.96.0.1"))
				b.Synced(true)
				synctest.Wait()
				c.change(t, b, host)
				synctest.Wait()
				if len(said) != 1 {
					t.Fatalf("said: %v", said)
				}
				b.Set(service("a", "10.96.0.2"))
				synctest.Wait()
				if len(said) != 1 || said[0].Object != "Service ns/a" || said[0].Detail != c.want {
					t.Errorf("said: %v, want %s", said, c.want)
				}
			})
		})
	}
}

// retrying is a backend that cannot do a port at first, and does it later without a change.
type retrying struct {
	dataplane.Backend
	gaps []model.Gap
	next time.Time
}

func (r *retrying) Gaps(model.PortID) []model.Gap { return r.gaps }
func (r *retrying) Next() time.Time               { return r.next }

func (r *retrying) Sync(ctx context.Context) (dataplane.Work, error) {
	w, err := r.Backend.Sync(ctx)
	if !r.next.IsZero() && !time.Now().Before(r.next) {
		r.next, r.gaps = time.Time{}, nil
		w.Gaps = []model.PortID{{Service: model.ServiceName{Namespace: "ns", Name: "a"}, Proto: model.TCP}}
	}
	return w, err
}

// A Service whose gap is repaired by a retry is programmed, though it has not changed.
func TestAGapGoesWithoutAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &retrying{gaps: []model.Gap{{Detail: "port in use"}}, next: time.Now().Add(time.Minute)}
		b := start(t, func(o *engine.Options) {
			r.Backend = o.Backend
			o.Backend = r
		})
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		sleep(30 * time.Second)
		if s := b.Status().Services; s[model.Partial] != 2 {
			t.Errorf("with gaps: %v", s)
		}
		sleep(time.Minute)
		if s := b.Status().Services; s[model.Partial] != 1 || s[model.Programmed] != 1 { // of b nothing was said
			t.Errorf("without: %v", s)
		}
	})
}
