// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// output is what a driver prints.
type output struct {
	mu sync.Mutex
	bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(b)
}

// take returns what was printed since.
func (o *output) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.Reset()
	return o.String()
}

// echo is an endpoint that says a word.
func echo(t *testing.T, word string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, word)
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func receive(at string) (string, error) {
	c, err := net.DialTimeout("tcp", at, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	b, err := io.ReadAll(c)
	return string(b), err
}

func port(name string, kind model.Kind, at string, endpoints ...netip.AddrPort) *model.Port {
	act := model.Action{Verdict: model.Reject}
	if len(endpoints) > 0 {
		pool := &model.Pool{}
		for _, e := range endpoints {
			pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: e})
		}
		act = model.Action{Pool: pool}
	}
	return &model.Port{
		ID:        model.PortID{Service: model.ServiceName{Namespace: "default", Name: name}, Proto: model.TCP},
		Frontends: []model.Frontend{{Kind: kind, At: netip.MustParseAddrPort(at), On: [...]model.Action{act, act, act}}},
	}
}

// plane is a backend that must leave nothing behind.
type plane struct {
	dataplane.Backend
	t *testing.T
}

func newPlane(t *testing.T, p Placement, d *Driver, host *model.Host) plane {
	t.Helper()
	b := dataplane.New(NewCompiler(p), d)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(host)
	return plane{b, t}
}

func (p plane) apply(old, new *model.Port) error {
	p.Update([]model.Delta{{Old: old, New: new}})
	_, err := p.Sync(context.Background())
	return err
}

func TestLoopback(t *testing.T) {
	out := &output{}
	p := newPlane(t, Loopback{}, openLoopback(out, relay.Options{}), &model.Host{})
	first := port("web", model.KindClusterIP, "10.96.0.10:18080", echo(t, "one"))
	if err := p.apply(nil, first); err != nil {
		t.Fatal(err)
	}
	said := out.take()
	if !strings.Contains(said, "default/web ") || !strings.Contains(said, "10.96.0.10:18080/tcp") {
		t.Errorf("the table says %q", said)
	}
	_, at, _ := strings.Cut(strings.TrimSpace(said), "-> ")
	if got, err := receive(at); got != "one" {
		t.Fatalf("at %s: %q, %v", at, got, err)
	}
	second := port("web", model.KindClusterIP, "10.96.0.10:18080", echo(t, "two"))
	if err := p.apply(first, second); err != nil {
		t.Fatal(err)
	}
	if got, err := receive(at); got != "two" || out.take() != "" {
		t.Errorf("after a change: %q, %v", got, err)
	}
	none := port("web", model.KindClusterIP, "10.96.0.10:18080")
	if err := p.apply(second, none); err != nil {
		t.Fatal(err)
	}
	if got, err := receive(at); err == nil {
		t.Errorf("without endpoints: %q", got)
	}
	if said := out.take(); !strings.Contains(said, "-> closed") {
		t.Errorf("the table says %q", said)
	}
}

// Two addresses that differ in their first number want the same place.
func TestLoopbackPlacesMayBeTaken(t *testing.T) {
	out := &output{}
	p := newPlane(t, Loopback{}, openLoopback(out, relay.Options{}), &model.Host{})
	for i, ip := range []string{"10.96.0.11:18081", "192.96.0.11:18081"} {
		word := fmt.Sprint(i)
		if err := p.apply(nil, port("web"+word, model.KindClusterIP, ip, echo(t, word))); err != nil {
			t.Fatal(err)
		}
		_, at, _ := strings.Cut(strings.TrimSpace(out.take()), "-> ")
		if got, err := receive(at); got != word {
			t.Errorf("%s at %s: %q, %v", ip, at, got, err)
		}
	}
}

func TestFallbacks(t *testing.T) {
	got := fallbacks(netip.MustParseAddrPort("127.96.0.10:80"))
	want := []netip.AddrPort{
		netip.MustParseAddrPort("127.96.0.10:8080"), netip.MustParseAddrPort("127.96.0.10:0"), netip.MustParseAddrPort("127.0.0.1:0"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// Services that are each other's endpoints are refused, with one connection for a
// client; an endpoint behind one that is a listener here is reached.
func TestListenersAreNoEndpoints(t *testing.T) {
	if l, err := net.Listen("tcp", "127.96.0.1:0"); err != nil {
		t.Skipf("no further loopback addresses here: %v", err)
	} else {
		l.Close()
	}
	d := Open(Options{Addresses: &card{addrs: map[netip.Addr]bool{}}})
	host := &model.Host{NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Loopback: [2]bool{true, true}}}
	p := newPlane(t, Adapter{}, d, host)
	at := netip.MustParseAddrPort
	own := at("127.0.0.1:18086") // a node port
	for _, s := range []*model.Port{
		port("a", model.KindClusterIP, "127.96.0.21:18084", at("127.96.0.22:18085")),
		port("b", model.KindClusterIP, "127.96.0.22:18085", own),
		port("c", model.KindNodePort, "0.0.0.0:18086", at("127.96.0.21:18084")),
		port("d", model.KindClusterIP, "127.96.0.23:18087", own, echo(t, "d")),
	} {
		if err := p.apply(nil, s); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(d.listeners); n != 4 {
		t.Fatalf("%d listeners", n)
	}
	clients := []string{"127.96.0.21:18084", "127.96.0.22:18085", own.String()}
	for _, at := range clients {
		if got, err := receive(at); err == nil {
			t.Errorf("%s says %q", at, got)
		}
	}
	if n := d.server.Stats().Accepted; n > uint64(len(clients)) {
		t.Errorf("%d clients became %d", len(clients), n)
	}
	for range 2 {
		if got, err := receive("127.96.0.23:18087"); got != "d" {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// card is an adapter, in memory.
type card struct {
	addrs map[netip.Addr]bool
	err   error
}

func (c *card) Add(a netip.Addr) error {
	if c.err == nil {
		c.addrs[a] = true
	}
	return c.err
}

func (c *card) Remove(a netip.Addr) error { delete(c.addrs, a); return c.err }

func (c *card) List() (all []netip.Addr, err error) {
	for a := range c.addrs {
		all = append(all, a)
	}
	return all, c.err
}

// Addresses come before their listeners, go with the last of them, and what an
// earlier run left is removed, or kept where it is wanted.
func TestAdapter(t *testing.T) {
	if l, err := net.Listen("tcp", "127.96.0.1:0"); err != nil {
		t.Skipf("no further loopback addresses here: %v", err)
	} else {
		l.Close()
	}
	vip, left := netip.MustParseAddr("127.96.0.20"), netip.MustParseAddr("127.96.0.99")
	c := &card{addrs: map[netip.Addr]bool{left: true, vip: true}}
	p := newPlane(t, Adapter{}, Open(Options{Addresses: c}), &model.Host{})
	web := port("web", model.KindClusterIP, "127.96.0.20:18082", echo(t, "web"))
	if err := p.apply(nil, web); err != nil {
		t.Fatal(err)
	}
	if !c.addrs[vip] || c.addrs[left] {
		t.Errorf("the adapter has %v", c.addrs)
	}
	if got, err := receive("127.96.0.20:18082"); got != "web" {
		t.Errorf("%q, %v", got, err)
	}
	more := port("more", model.KindClusterIP, "127.96.0.20:18083", echo(t, "more"))
	if err := p.apply(nil, more); err != nil {
		t.Fatal(err)
	}
	if err := p.apply(web, nil); err != nil || !c.addrs[vip] {
		t.Errorf("an address that another port needs is gone: %v", err)
	}
	if err := p.Close(); err != nil || len(c.addrs) != 0 {
		t.Errorf("after the end the adapter has %v (%v)", c.addrs, err)
	}
}

// An address that is not ready yet is waited for; one that cannot be had is an
// error, of this port alone.
func TestAdapterFailures(t *testing.T) {
	c := &card{addrs: map[netip.Addr]bool{}}
	p := newPlane(t, Adapter{}, Open(Options{Addresses: c}), &model.Host{})
	slow := port("slow", model.KindClusterIP, "192.0.2.20:80", netip.MustParseAddrPort("192.0.2.1:80"))
	if err := p.apply(nil, slow); err != nil {
		t.Errorf("an address that is not ready is a failure: %v", err)
	}
	if p.Next().IsZero() {
		t.Error("no further check")
	}
	c.err = errors.New("no")
	if err := p.apply(nil, port("bad", model.KindClusterIP, "192.0.2.21:80", netip.MustParseAddrPort("192.0.2.1:80"))); err == nil {
		t.Error("no error")
	}
	c.err = nil
}

func TestOrigin(t *testing.T) {
	host := &model.Host{
		IPs:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Pods: model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
	}
	own := func(a netip.Addr) bool { return a == netip.MustParseAddr("10.96.0.10") }
	for client, want := range map[string]model.Origin{
		"10.244.1.10": model.FromPod, "192.0.2.1": model.FromHost, "127.0.0.1": model.FromHost, "::1": model.FromHost,
		"10.96.0.10": model.FromHost, "192.0.2.100": model.FromOutside,
	} {
		if got := origin(host, own, netip.MustParseAddr(client)); got != want {
			t.Errorf("%s is from %s", client, got)
		}
	}
}

func TestBusyIsNoFailure(t *testing.T) {
	d := Open(Options{Addresses: &card{addrs: map[netip.Addr]bool{}}})
	defer d.Close()
	at := netip.MustParseAddrPort("192.0.2.20:80")
	d.assigned[at.Addr()] = true
	_, err := net.Listen("tcp", at.String())
	var busy ledger.BusyError
	if !errors.As(d.busyOr(Key{At: at}, err), &busy) {
		t.Errorf("got %v", d.busyOr(Key{At: at}, err))
	}
}
