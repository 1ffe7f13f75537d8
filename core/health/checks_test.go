// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/model"
)

// lab is Checks on a wire.
type lab struct {
	*health.Checks
	*wire
	t       *testing.T
	healthy atomic.Bool
	host    *model.Host
	ports   map[model.PortID]*model.Port

	mu     sync.Mutex
	failed []string
}

func newLab(t *testing.T, change ...func(*health.ChecksOptions)) *lab {
	l := &lab{wire: newWire(), t: t, host: everywhere(), ports: map[model.PortID]*model.Port{}}
	l.healthy.Store(true)
	o := health.ChecksOptions{
		Listen: l.Listen, Healthy: l.healthy.Load, Log: quiet,
		Failed: func(svc model.ServiceName, port uint16, err error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.failed = append(l.failed, fmt.Sprintf("%s %d: %v", svc, port, err))
		},
	}
	for _, f := range change {
		f(&o)
	}
	l.Checks = health.NewChecks(o)
	return l
}

func everywhere() *model.Host {
	return &model.Host{NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}}
}

func port(svc, name string, f model.Family, number uint16, local int) *model.Port {
	return &model.Port{
		ID:         model.PortID{Service: model.ServiceName{Namespace: "ns", Name: svc}, Name: name, Proto: model.TCP, Family: f},
		HealthPort: number, LocalReady: local,
	}
}

// set makes ports what is desired, remove the opposite.
func (l *lab) set(ports ...*model.Port) {
	var deltas []model.Delta
	for _, p := range ports {
		deltas = append(deltas, model.Delta{Old: l.ports[p.ID], New: p})
		l.ports[p.ID] = p
	}
	l.Update(l.host, deltas, nil)
}

func (l *lab) remove(ports ...*model.Port) {
	var deltas []model.Delta
	for _, p := range ports {
		deltas = append(deltas, model.Delta{Old: l.ports[p.ID]})
		delete(l.ports, p.ID)
	}
	l.Update(l.host, deltas, nil)
}

func (l *lab) up(at string) {
	l.t.Helper()
	eventually(l.t, at+" is served", func() bool { return l.addr(at) != "" })
}

func (l *lab) down(at string) {
	l.t.Helper()
	eventually(l.t, at+" is closed", func() bool { return l.addr(at) == "" })
}

func (l *lab) ask(at string) (code int, weight, text string) {
	l.t.Helper()
	code, header, text, err := get("GET", "http://"+l.addr(at)+"/any/path?at=all", nil)
	if err != nil {
		l.t.Fatal(err)
	}
	return code, header.Get("X-Load-Balancing-Endpoint-Weight"), text
}

// weight is what a check says, or "" while it is not served.
func (l *lab) weight(at string) string {
	addr := l.addr(at)
	if addr == "" {
		return ""
	}
	_, header, _, err := get("GET", "http://"+addr, nil)
	if err != nil {
		return ""
	}
	return header.Get("X-Load-Balancing-Endpoint-Weight")
}

func TestChecksAnswerAsKubeProxy(t *testing.T) {
	l := newLab(t)
	run(t, l.Run)
	l.set(port("a", "", model.IPv4, 32080, 2), port("a", "", model.IPv6, 32080, 0))
	l.up("tcp4 0.0.0.0:32080")
	l.up("tcp6 [::]:32080")
	doc := func(n int, healthy bool) string {
		return fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"a\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %t\n}", n, healthy)
	}
	expect := func(what, at string, code, n int, healthy bool) {
		t.Helper()
		gotCode, weight, text := l.ask(at)
		if gotCode != code || weight != fmt.Sprint(n) || text != doc(n, healthy) {
			t.Errorf("%s: %d, weight %s, %s", what, gotCode, weight, text)
		}
	}
	expect("two endpoints", "tcp4 0.0.0.0:32080", 200, 2, true)
	expect("none in the other family", "tcp6 [::]:32080", 503, 0, true)
	l.set(port("a", "", model.IPv4, 32080, 0))
	expect("the last one gone", "tcp4 0.0.0.0:32080", 503, 0, true)
	l.set(port("a", "", model.IPv4, 32080, 1))
	l.healthy.Store(false)
	expect("proxy unhealthy", "tcp4 0.0.0.0:32080", 503, 1, false)
	code, header, text, err := get("HEAD", "http://"+l.addr("tcp4 0.0.0.0:32080"), nil)
	if err != nil || code != 503 || text != "" || header.Get("Content-Type") != "application/json" || header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("HEAD: %d %v %q %v", code, header, text, err)
	}
	if code, _, _, _ := get("POST", "http://"+l.addr("tcp4 0.0.0.0:32080"), strings.NewReader("x")); code != 503 {
		t.Errorf("POST: %d", code)
	}
}

// A Service has one listener in a family, however many ports it has, until the
// last of them is gone.
func TestChecksFollowServices(t *testing.T) {
	l := newLab(t)
	run(t, l.Run)
	http, tls := port("a", "http", model.IPv4, 32080, 1), port("a", "https", model.IPv4, 32080, 1)
	l.set(http, tls, port("other", "", model.IPv4, 0, 0))
	l.up("tcp4 0.0.0.0:32080")
	l.remove(http)
	if code, _, _ := l.ask("tcp4 0.0.0.0:32080"); code != 200 || l.tries != 1 {
		t.Errorf("after one port went: %d, %d binds", code, l.tries)
	}
	l.set(port("a", "https", model.IPv4, 32081, 1))
	l.down("tcp4 0.0.0.0:32080")
	l.up("tcp4 0.0.0.0:32081")
	// The port goes to another Service, in one change and in the worse order.
	b := port("b", "", model.IPv4, 32081, 3)
	l.set(b)
	l.remove(tls)
	eventually(t, "b has the port", func() bool {
		return l.weight("tcp4 0.0.0.0:32081") == "3"
	})
	l.set(port("b", "", model.IPv4, 0, 0)) // policy Cluster now
	l.down("tcp4 0.0.0.0:32081")
	eventually(t, "nothing is left", func() bool { return l.count() == 0 })
}

func TestChecksBindNodePortAddresses(t *testing.T) {
	l := newLab(t)
	run(t, l.Run)
	l.set(port("a", "", model.IPv4, 32080, 1), port("a", "", model.IPv6, 32080, 1))
	l.up("tcp4 0.0.0.0:32080")
	at := func(prefixes ...string) *model.Host {
		h := &model.Host{}
		for _, p := range prefixes {
			h.NodePorts.Prefixes = append(h.NodePorts.Prefixes, netip.MustParsePrefix(p))
		}
		return h
	}
	l.Update(at("192.0.2.1/32", "2001:db8::1/128"), nil, nil)
	l.up("tcp4 192.0.2.1:32080")
	l.up("tcp6 [2001:db8::1]:32080")
	l.down("tcp4 0.0.0.0:32080")
	l.Update(at("192.0.2.0/24"), nil, nil)
	l.up("tcp4 0.0.0.0:32080")
	eventually(t, "one family alone", func() bool { return l.count() == 1 })
	// The wire's listener is on 127.0.0.1, which is outside that prefix.
	if _, _, _, err := get("GET", "http://"+l.addr("tcp4 0.0.0.0:32080"), nil); err == nil {
		t.Error("answered on an address that node ports do not have")
	}
	l.Update(at("127.0.0.0/8", "192.0.2.0/24"), nil, nil)
	eventually(t, "answers inside the prefixes", func() bool {
		addr := l.addr("tcp4 0.0.0.0:32080")
		if addr == "" {
			return false
		}
		code, _, _, err := get("GET", "http://"+addr, nil)
		return err == nil && code == 200
	})
}

// A port that cannot be bound is reported once, tried with growing pauses, and
// served when it is free.
func TestChecksTryAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = l.Run(ctx) }()
		l.spoil("tcp4 0.0.0.0:32080", errors.New("taken by sshd"))
		l.set(port("a", "", model.IPv4, 32080, 1))
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := []string{"ns/a 32080: taken by sshd"}; !slices.Equal(l.failed, want) {
			t.Errorf("reported %q", l.failed)
		}
		if l.tries < 60 || l.tries > 70 {
			t.Errorf("%d attempts in an hour, want one a minute", l.tries)
		}
		l.remove(port("a", "", model.IPv4, 32080, 1))
		tries := l.tries
		time.Sleep(time.Hour)
		synctest.Wait()
		if l.tries != tries {
			t.Error("still trying for a Service that is gone")
		}
		cancel()
		<-done
	})
}

// A listener that fails is reported like one that cannot be bound, and opened again.
func TestChecksOpenAListenerAgainThatFailed(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	defer func() { cancel(); <-done }()
	const at = "tcp4 0.0.0.0:32080"
	l.set(port("a", "", model.IPv4, 32080, 1), port("b", "", model.IPv4, 32081, 2))
	l.up(at)
	l.up("tcp4 0.0.0.0:32081")
	before := l.addr(at)
	l.deafen(at, syscall.ENOBUFS)
	_, _, _, _ = get("GET", "http://"+before, nil)
	eventually(t, "the failure is reported", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.Equal(l.failed, []string{"ns/a 32080: " + syscall.ENOBUFS.Error()})
	})
	l.deafen(at, nil)
	eventually(t, "it is served again", func() bool { return l.addr(at) != before && l.weight(at) == "1" })
	if got := l.weight("tcp4 0.0.0.0:32081"); got != "2" {
		t.Errorf("the other check answers %q", got)
	}
}

func TestChecksOfTwoServicesWithOnePort(t *testing.T) {
	l := newLab(t)
	run(t, l.Run)
	a, b := port("a", "", model.IPv4, 32080, 1), port("b", "", model.IPv4, 32080, 2)
	l.set(a)
	l.up("tcp4 0.0.0.0:32080")
	l.set(b)
	eventually(t, "the conflict is reported", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.failed) == 1 && strings.Contains(l.failed[0], "ns/b 32080") && strings.Contains(l.failed[0], "of Service ns/a")
	})
	l.remove(a)
	eventually(t, "b takes over", func() bool {
		return l.weight("tcp4 0.0.0.0:32080") == "2"
	})
}

// A port that we freed ourselves needs no pause before another Service gets it.
func TestChecksTakeOverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.open = func(context.Context) (net.Listener, error) { return newSilent(), nil }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = l.Run(ctx) }()
		a, b := port("a", "", model.IPv4, 32080, 1), port("b", "", model.IPv4, 32080, 2)
		l.set(a)
		synctest.Wait()
		first := l.bound["tcp4 0.0.0.0:32080"]
		l.set(b)
		synctest.Wait()
		l.remove(a)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if now := l.bound["tcp4 0.0.0.0:32080"]; first == nil || now == nil || now == first || l.tries != 3 {
			t.Errorf("after %d attempts %v has the port that %v had", l.tries, now, first)
		}
		cancel()
		<-done
	})
}

// A thousand Services, and one whose port flaps, cost a bounded number of
// sockets and goroutines, and leave none.
func TestChecksAreBounded(t *testing.T) {
	before := runtime.NumGoroutine()
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	var all []*model.Port
	for i := range 1000 {
		all = append(all, port(fmt.Sprint("s", i), "", model.IPv4, uint16(30000+i), 1))
	}
	l.set(all...)
	eventually(t, "all are served", func() bool { return l.count() == 1000 })
	for i := range 10000 {
		l.set(port("s0", "", model.IPv4, uint16(40000+i%100), 1))
	}
	eventually(t, "the last one counts", func() bool { return l.addr("tcp4 0.0.0.0:40099") != "" && l.count() == 1000 })
	if n := runtime.NumGoroutine() - before; n > 1100 {
		t.Errorf("%d goroutines", n)
	}
	cancel()
	if err := <-done; err != nil || l.count() != 0 {
		t.Errorf("end: %v, %d listeners left", err, l.count())
	}
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+5 })
}

// A node where the load balancer's IP is not programmed has no endpoints for it,
// whatever runs there.
func TestAPortThatIsNotServedHasNoEndpoints(t *testing.T) {
	good, bad := port("good", "", model.IPv4, 32080, 3), port("bad", "", model.IPv4, 32081, 3)
	l := newLab(t, func(o *health.ChecksOptions) { o.Unserved = func(id model.PortID) bool { return id == bad.ID } })
	run(t, l.Run)
	l.set(good, bad)
	for at, want := range map[string]int{"tcp4 0.0.0.0:32080": 200, "tcp4 0.0.0.0:32081": 503} {
		l.up(at)
		if code, _, text := l.ask(at); code != want {
			t.Errorf("%s: %d, want %d: %s", at, code, want, text)
		}
	}
}

// What a data plane serves changes without the Service: another mode takes over, or a retry
// succeeds. One port that is not served is enough.
func TestTheCountFollowsWhatIsServed(t *testing.T) {
	web, tls := port("web", "http", model.IPv4, 32080, 3), port("web", "tls", model.IPv4, 32080, 3)
	var missing atomic.Pointer[model.Port]
	l := newLab(t, func(o *health.ChecksOptions) {
		o.Unserved = func(id model.PortID) bool { p := missing.Load(); return p != nil && p.ID == id }
	})
	run(t, l.Run)
	l.set(web, tls)
	l.up("tcp4 0.0.0.0:32080")
	unknown := model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "gone"}}
	for _, c := range []struct {
		missing *model.Port
		want    int
	}{{nil, 200}, {web, 503}, {tls, 503}, {nil, 200}} {
		missing.Store(c.missing)
		l.Update(l.host, nil, []model.PortID{unknown, web.ID, tls.ID})
		if code, _, text := l.ask("tcp4 0.0.0.0:32080"); code != c.want {
			t.Errorf("%v is not served: %d, want %d: %s", c.missing, code, c.want, text)
		}
	}
	l.remove(tls)
	missing.Store(tls)
	l.Update(l.host, nil, []model.PortID{web.ID})
	if code, _, _ := l.ask("tcp4 0.0.0.0:32080"); code != 200 {
		t.Errorf("a port that is gone counts: %d", code)
	}
}
