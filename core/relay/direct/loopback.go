package direct

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// LoopbackMode serves Services on loopback addresses, for developers: it works
// on any system and needs no privileges. Where each port is, it tells on standard
// output.
func LoopbackMode() dataplane.Mode {
	return dataplane.Mode{
		Name: relay.Mode, OnRequest: true,
		Probe: probeLoopback,
		Open: func(*config.Config) (dataplane.Backend, error) {
			return dataplane.New(NewCompiler(Loopback{}), OpenLoopback(os.Stdout)), nil
		},
		Plan: planLoopback,
	}
}

// OpenLoopback returns a driver for listeners on loopback addresses. It writes a
// table of them to out, a line for each change.
func OpenLoopback(out io.Writer) *Driver {
	return Open(Options{
		Elsewhere: elsewhere,
		Moved:     func(k Key, v Value, at netip.AddrPort) { io.WriteString(out, line(k, v, at)) },
		Relay:     relay.Options{Log: slog.Default()},
	})
}

// elsewhere is where a listener goes whose place is taken, or not for everybody:
// 80 becomes 8080, and systems that have but one loopback address choose a port
// of that.
func elsewhere(at netip.AddrPort) (others []netip.AddrPort) {
	const privileged = 1024
	if at.Port() < privileged {
		others = append(others, netip.AddrPortFrom(at.Addr(), 8000+at.Port()))
	}
	one := loopbackOf(at.Addr())
	return append(others, netip.AddrPortFrom(at.Addr(), 0), netip.AddrPortFrom(one, 0))
}

// line is a line of the table.
func line(k Key, v Value, at netip.AddrPort) string {
	where := "gone"
	if at.IsValid() {
		where = at.String()
	}
	return fmt.Sprintf("%-40s %-26s -> %s\n", clean(v.Port), fmt.Sprintf("%s/%s", k.Front, k.Proto), where)
}

// clean leaves nothing in a name that could do anything to a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

func probeLoopback(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("cannot listen on loopback: %w", err)
	}
	return l.Close()
}

func planLoopback(_ *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	objects, gaps := dataplane.Compile(NewCompiler(Loopback{}), host, ports)
	return dataplane.Plan{Native: Table(objects), Objects: len(objects), Gaps: gaps}
}

// Table lists where listeners are, or would like to be.
func Table(objects map[Key]Value) string {
	var b strings.Builder
	b.WriteString("# Service port, its address -> where it is served\n")
	keys := slices.SortedFunc(maps.Keys(objects), func(x, y Key) int {
		return strings.Compare(line(x, objects[x], x.At), line(y, objects[y], y.At))
	})
	for _, k := range keys {
		if k.Kind == KindListener {
			b.WriteString(line(k, objects[k], k.At))
		}
	}
	return b.String()
}
