package iptables

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
)

// route_localnet is open while node ports answer on 127.0.0.1, and afterwards
// what it was before, whoever removes the rules.
func TestRouteLocalnetIsPutBack(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		open := *benchHost
		open.NodePorts = model.NodePortMatch{Prefixes: loopback[:1], Loopback: true}
		for _, was := range []string{"0", "1"} {
			if err := host.EnsureSysctl(routeLocalnet, was); err != nil {
				t.Skip(err)
			}
			expect := func(when, want string) {
				t.Helper()
				if now, err := host.Sysctl(routeLocalnet); now != want {
					t.Errorf("it was %s, and %s it is %s (%v)", was, when, now, err)
				}
			}
			d := k.driver()
			b := dataplane.New(NewCompiler(Options{}), d)
			sync := func(h *model.Host) (ops int) {
				t.Helper()
				if err := b.Adopt(t.Context()); err != nil {
					t.Fatal(err)
				}
				b.SetHost(h)
				work, err := b.Sync(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return work.Ops
			}
			sync(&open)
			expect("with node ports", "1")
			k.command("-t", "filter", "-F", "INPUT")
			sync(&open)
			sync(benchHost)
			expect("without node ports", was)
			b = dataplane.New(NewCompiler(Options{}), k.driver())
			sync(&open)
			b = dataplane.New(NewCompiler(Options{}), k.driver())
			if n := sync(&open); n != 0 {
				t.Errorf("a restart wrote %d objects", n)
			}
			if err := b.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			expect("after cleanup", was)
		}
	})
}
