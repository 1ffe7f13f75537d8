// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/relay"
)

// LoopbackMode serves Services on loopback addresses, for developers: it works
// on any system and needs no privileges. It prints the address of each port on
// standard output.
func LoopbackMode() dataplane.Mode {
	return dataplane.Mode{
		Name: relay.Mode, OnRequest: true, Ephemeral: true,
		Probe: probeLoopback,
		Open: func(_ context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
			return NewBackend(Loopback{}, openLoopback(os.Stdout, relay.Options{TCP: relay.TimeoutsOf(c), Log: log})), nil
		},
		Plan: planLoopback,
	}
}

// openLoopback returns a driver for listeners on loopback addresses. It writes a
// table of them to out, a line for each change.
func openLoopback(out io.Writer, relays relay.Options) *Driver {
	return Open(Options{
		Fallbacks: fallbacks,
		Changed:   func(k Key, v Value, at netip.AddrPort) { io.WriteString(out, line(k, v, at)) },
		Relay:     relays,
	})
}

// fallbacks of a listener whose port is in use or privileged: 80 becomes 8080, and
// on systems with only one loopback address any free port of that.
func fallbacks(at netip.AddrPort) (others []netip.AddrPort) {
	const privileged = 1024
	if at.Port() < privileged {
		others = append(others, netip.AddrPortFrom(at.Addr(), 8000+at.Port()))
	}
	one := model.FamilyOf(at.Addr()).Loopback()
	return append(others, netip.AddrPortFrom(at.Addr(), 0), netip.AddrPortFrom(one, 0))
}

// line is a line of the table.
func line(k Key, v Value, at netip.AddrPort) string {
	where := "closed"
	if at.IsValid() {
		where = at.String()
	}
	return fmt.Sprintf("%-40s %-26s -> %s\n", printable.Text(v.Policy.Port.String()), fmt.Sprintf("%s/%s", k.Frontend, k.Proto), where)
}

func probeLoopback(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("cannot listen on loopback: %w", err)
	}
	return l.Close()
}

func planLoopback(_ *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(Loopback{}), host, ports, Table)
}

// Table lists the listeners, at the addresses they prefer.
func Table(objects map[Key]Value) string {
	var b strings.Builder
	b.WriteString("# Service port, its address -> listener\n")
	var keys []Key
	for k := range objects {
		if k.Kind == kindListener {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y Key) int {
		return strings.Compare(line(x, objects[x], x.At), line(y, objects[y], y.At))
	})
	for _, k := range keys {
		b.WriteString(line(k, objects[k], k.At))
	}
	return b.String()
}
