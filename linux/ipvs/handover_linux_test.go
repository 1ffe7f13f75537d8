// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// A data plane that drains keeps its connections, takes no new ones, and is
// ready to go when they have ended. One that is called back works as before.
func TestDrainWaitsForConnections(t *testing.T) {
	s := newSite(t)
	s.open()
	s.set(web(first))
	call := netns.Call{From: client, Proto: model.TCP, To: vip, Timeout: time.Second}
	conn, err := s.net.Connect(call)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(ctx) }()
	for end := time.Now().Add(time.Minute); s.dial() == first; {
		if time.Now().After(end) {
			t.Fatal("a new connection is served")
		}
	}
	if a, err := netns.Ask(conn, time.Second); err != nil || a.Outcome != netns.Answered {
		t.Errorf("the connection while it drains: %v %v", a, err)
	}
	select {
	case err := <-drained:
		t.Fatalf("a connection is there: %v", err)
	case <-time.After(time.Second):
	}
	cancel()
	if err := <-drained; !errors.Is(err, context.Canceled) {
		t.Errorf("a connection is there: %v", err)
	}

	s.close()
	s.open() // called back
	s.set(web(first))
	s.same(testHost(), []*model.Port{web(first)})
	if got := s.dial(); got != first {
		t.Errorf("called back: %s", got)
	}
	if out := s.run("ip", "route", "get", vip.Addr().String()); !strings.Contains(out, "src "+vip.Addr().String()) {
		t.Errorf("the local route is diverted still: %s", out)
	}
	if a, err := netns.Ask(conn, time.Second); err != nil || a.Outcome != netns.Answered {
		t.Errorf("the connection after it: %v %v", a, err)
	}
	_ = conn.Close()
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		t.Errorf("nothing is left to wait for: %v", err)
	}
	if out := s.run("ip", "route", "get", vip.Addr().String()); !strings.Contains(out, "src "+node.String()) {
		t.Errorf("the local route is not diverted: %s", out)
	}
	if err := s.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if out := s.run("ip", "route", "show", "table", "all"); strings.Contains(out, vip.Addr().String()) || strings.Contains(out, external.Addr().String()) {
		t.Errorf("routes are left:\n%s", out)
	}
}

// Node ports follow the machine's addresses; those of cluster IPs are no news.
func TestAddressesAreFollowed(t *testing.T) {
	s := newSite(t)
	s.open()
	port := web(first)
	port.Frontends[1] = model.Frontend{Kind: model.KindNodePort, At: netip.MustParseAddrPort("0.0.0.0:30080"), On: port.Frontends[1].On}
	var f *followed
	if err := s.net.Do(netns.Node, func() error {
		b, err := followAddresses(s.Backend)
		f, _ = b.(*followed)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.Backend = f
	s.SetHost(testHost())
	s.set(port)
	look := func() (due bool) {
		t.Helper()
		if _, err := f.Disturbed(t.Context()); err != nil {
			t.Fatal(err)
		}
		return !f.due.IsZero()
	}
	if look() {
		t.Error("our own addresses are taken for news")
	}
	served := func() bool { return slices.Contains(strings.Fields(s.run("ipvsadm", "-Sn")), "192.0.2.77:30080") }
	for _, step := range []struct {
		command string
		want    bool
	}{{"ip addr add 192.0.2.77/32 dev lo", true}, {"ip addr del 192.0.2.77/32 dev lo", false}} {
		s.run("sh", "-c", step.command)
		if !look() || s.Next().IsZero() {
			t.Errorf("%s: not noticed", step.command)
		}
		if _, err := s.Sync(t.Context()); err != nil {
			t.Error(err)
		}
		if served() != step.want {
			t.Errorf("%s: served: %t", step.command, served())
		}
	}
}
