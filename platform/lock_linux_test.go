package platform_test

import (
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// newNet makes a node and a machine outside, or skips the test.
func newNet(t *testing.T) *netns.Net {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	net, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Close(); err != nil {
			t.Error(err)
		}
	})
	return net
}

// Each network namespace has its own lock, also within one process.
func TestLockBelongsToTheNamespace(t *testing.T) {
	net := newNet(t)
	lock := func(at netns.Place) (l io.Closer, err error) {
		err = net.Do(at, func() error { l, err = platform.Lock(); return err })
		return l, err
	}
	held, err := lock(netns.Node)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(netns.Node); err == nil || !strings.Contains(err.Error(), "stop that one first") {
		t.Errorf("a second lock: %v", err)
	}
	elsewhere, err := lock(netns.Outside)
	if err != nil {
		t.Fatalf("another namespace: %v", err)
	}
	defer elsewhere.Close()

	c := config.Default()
	c.HTTPAddress, c.HealthAddress, c.Manifests = "", "", t.TempDir()
	open := func() (p *platform.Proxy, err error) {
		err = net.Do(netns.Node, func() error {
			p, err = platform.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
			return err
		})
		return p, err
	}
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "another tandem") {
		t.Errorf("a proxy beside another: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if err := net.Do(netns.Node, func() error { return platform.Modes()[0].Probe(t.Context()) }); err != nil {
		t.Skipf("no proxy can be opened here: %v", err)
	}
	for range 2 { // a proxy that is closed leaves the lock to the next
		p, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
