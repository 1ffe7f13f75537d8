// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// A listener is in the opened namespace, on any thread, and the
// asking goroutine stays where it is.
func TestListenInANamespace(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	n, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var there *host.Namespace
	if err := n.Do(netns.Node, func() (err error) { there, err = host.OpenNamespace(); return err }); err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	l, err := there.Listen(t.Context(), "tcp4", "192.0.2.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := net.Listen("tcp4", "192.0.2.1:0"); err == nil {
		t.Error("this goroutine was left in the namespace")
	}
	if err := n.Do(netns.Outside, func() error {
		c, err := net.DialTimeout("tcp4", l.Addr().String(), 5*time.Second)
		if err == nil {
			err = c.Close()
		}
		return err
	}); err != nil {
		t.Errorf("from outside: %v", err)
	}
	here, err := host.OpenNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	own, err := here.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("at home: %v", err)
	}
	own.Close()
}
