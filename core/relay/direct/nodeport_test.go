// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// mainPlane is a backend that does everything at once.
type mainPlane struct {
	dataplane.Backend
	host  *model.Host
	ports int
}

func (m *mainPlane) Adopt(context.Context) error { return nil }
func (m *mainPlane) SetHost(h *model.Host)       { m.host = h }
func (m *mainPlane) Update(d []model.Delta)      { m.ports += len(d) }
func (m *mainPlane) Sync(context.Context) (dataplane.Work, error) {
	return dataplane.Work{Rules: []dataplane.Rules{{}}}, nil
}
func (m *mainPlane) Next() time.Time                          { return time.Time{} }
func (m *mainPlane) Gaps(model.PortID) []model.Gap            { return nil }
func (m *mainPlane) Health() dataplane.Health                 { return dataplane.Health{} }
func (m *mainPlane) Close() error                             { return nil }
func (m *mainPlane) Preview([]model.Delta) []dataplane.Change { return nil }
func (m *mainPlane) AllGaps() map[model.PortID][]model.Gap    { return map[model.PortID][]model.Gap{} }
func (m *mainPlane) Packets() dataplane.Packets               { return dataplane.Packets{} }

// Drain waits for connections that do not end.
func (m *mainPlane) Drain(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// freePort returns a port that nothing listens on.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

func nodePort(number uint16, endpoint netip.AddrPort, proto model.Proto) *model.Port {
	act := model.Action{Pool: &model.Pool{Endpoints: []model.Endpoint{{Addr: endpoint}}}, SNAT: true}
	on := [...]model.Action{act, act, act}
	return &model.Port{
		ID: model.PortID{Service: model.ServiceName{Namespace: "default", Name: "web"}, Proto: proto},
		Frontends: []model.Frontend{
			{Kind: model.KindClusterIP, At: netip.MustParseAddrPort("10.96.0.10:80"), On: on},
			{Kind: model.KindNodePort, At: netip.AddrPortFrom(netip.IPv4Unspecified(), number), On: on},
		},
	}
}

func localhost(loopback bool) *model.Host {
	return &model.Host{NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Loopback: [2]bool{loopback, loopback}}}
}

func begin(t *testing.T, loopback bool) (dataplane.Backend, *mainPlane) {
	t.Helper()
	m := &mainPlane{}
	b := withNodePorts(m, NewBackend(NodePorts{}, Open(Options{})), slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(localhost(loopback))
	return b, m
}

func update(t *testing.T, b dataplane.Backend, d model.Delta) dataplane.Work {
	t.Helper()
	b.Update([]model.Delta{d})
	w, err := b.Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func say(port uint16) string {
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String(), 5*time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	b, _ := io.ReadAll(c)
	return string(b)
}

// What an edit does to node ports on loopback addresses is in its preview.
func TestPreviewOfLoopbackNodePorts(t *testing.T) {
	b, _ := begin(t, true)
	p := nodePort(freePort(t), echo(t, "here"), model.TCP)
	changes := b.Preview([]model.Delta{{New: p}})
	if len(changes) != 1 || changes[0].Verb != ledger.Create || changes[0].Owner != p.ID || !strings.Contains(changes[0].Object, "127.0.0.1") {
		t.Fatalf("%+v", changes)
	}
	update(t, b, model.Delta{New: p})
	if changes := b.Preview([]model.Delta{{Old: p}}); len(changes) != 1 || changes[0].Verb != ledger.Delete {
		t.Errorf("%+v", changes)
	}
	other, _ := begin(t, false)
	if changes := other.Preview([]model.Delta{{New: p}}); len(changes) != 0 {
		t.Errorf("where they do not answer there: %+v", changes)
	}
}

// Node ports answer on loopback addresses next to a mode that does not serve them.
func TestNodePortsBeside(t *testing.T) {
	b, m := begin(t, true)
	p := nodePort(freePort(t), echo(t, "here"), model.TCP)
	at := p.Frontends[1].At.Port()
	update(t, b, model.Delta{New: p})
	if got := say(at); got != "here" {
		t.Errorf("got %q", got)
	}
	if m.host.NodePorts.OnLoopback() || m.ports != 1 {
		t.Errorf("the mode has %+v and %d ports", m.host.NodePorts, m.ports)
	}
	if gaps := b.Gaps(p.ID); len(gaps) > 0 {
		t.Errorf("gaps %v", gaps)
	}
	if w, err := b.Sync(t.Context()); err != nil || len(w.Rules) != 1 {
		t.Errorf("the counters of the mode are lost: %+v, %v", w, err)
	}
	update(t, b, model.Delta{Old: p})
	if got := say(at); got != "" {
		t.Errorf("got %q after the Service was deleted", got)
	}
}

// Failover asks a mode of relays which endpoints answer, and of a mode with relays on
// loopback addresses only the mode itself.
func TestAttemptsOfRelays(t *testing.T) {
	b := NewBackend(NodePorts{}, Open(Options{}))
	if _, ok := b.(relay.Backend); !ok {
		t.Error("nobody knows which endpoints answer")
	}
	beside := withNodePorts(&mainPlane{}, b, slog.New(slog.DiscardHandler))
	defer beside.Close()
	if _, ok := beside.(relay.Backend); ok {
		t.Error("few connections stand for all")
	}
}

// While a mode drains that gave way to another one, the other one serves node ports on
// loopback addresses.
func TestNodePortsOfTheNextMode(t *testing.T) {
	old, _ := begin(t, true)
	next, _ := begin(t, true)
	number := freePort(t)
	update(t, old, model.Delta{New: nodePort(number, echo(t, "old"), model.TCP)})
	next.Update([]model.Delta{{New: nodePort(number, echo(t, "next"), model.TCP)}})
	if _, err := next.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := say(number); got != "old" {
		t.Fatalf("before the switch: %q", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	drained := make(chan error, 1)
	go func() { drained <- old.Drain(ctx) }()
	for say(number) != "next" {
		select {
		case err := <-drained:
			t.Fatal("drained while there are connections:", err)
		case <-t.Context().Done():
			t.Fatal("the next mode does not answer")
		case <-time.After(time.Until(next.Next())):
			if _, err := next.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	if err := <-drained; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestNodePortsOnlyWhereAsked(t *testing.T) {
	b, _ := begin(t, false)
	p := nodePort(freePort(t), echo(t, "here"), model.TCP)
	update(t, b, model.Delta{New: p})
	if got := say(p.Frontends[1].At.Port()); got != "" {
		t.Errorf("got %q", got)
	}
	b.SetHost(localhost(true))
	if _, err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := say(p.Frontends[1].At.Port()); got != "here" {
		t.Errorf("got %q after the configuration has changed", got)
	}
}

// What relays cannot do is a gap of the port, and holds nothing of the mode back.
func TestNodePortsGaps(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	b, _ := begin(t, true)
	busy := nodePort(netip.MustParseAddrPort(taken.Addr().String()).Port(), echo(t, "here"), model.TCP)
	if ids := update(t, b, model.Delta{New: busy}).Gaps; len(ids) != 1 || ids[0] != busy.ID {
		t.Errorf("ports with other gaps: %v", ids)
	}
	if gaps := b.Gaps(busy.ID); len(gaps) != 1 || !strings.Contains(gaps[0].Detail, "in use") {
		t.Errorf("gaps of a port that is in use: %v", gaps)
	}
	if b.Next().IsZero() {
		t.Error("it is not retried")
	}
	sctp := nodePort(freePort(t), echo(t, "here"), model.SCTP)
	if ids := update(t, b, model.Delta{New: sctp}).Gaps; len(ids) != 0 {
		t.Errorf("ports with other gaps: %v", ids)
	}
	if gaps := b.Gaps(sctp.ID); len(gaps) != 1 || !strings.Contains(gaps[0].Detail, "TCP and UDP only") {
		t.Errorf("gaps of SCTP: %v", gaps)
	}
	if h, gaps := b.Health(), b.AllGaps(); len(gaps) != 2 || len(h.Failures) > 0 {
		t.Errorf("health %+v, gaps %v", h, gaps)
	}
	local := nodePort(freePort(t), echo(t, "here"), model.TCP) // policy Local, and no endpoint here
	local.ID.Service.Name = "local"
	for i := range local.Frontends {
		local.Frontends[i].On[model.FromOutside] = model.Action{Verdict: model.Drop, Why: model.WhyNoLocalEndpoints}
	}
	update(t, b, model.Delta{New: local})
	if gaps := b.Gaps(local.ID); len(gaps) != 0 {
		t.Errorf("gaps for clients that do not reach loopback addresses: %v", gaps)
	}
	if n := b.Packets(); n.Listeners != [2]int{1, 0} || n.ListenFailures[model.IPv4] == 0 {
		t.Errorf("counted: %+v", n)
	}
	taken.Close() // the Service does not change
	var ids []model.PortID
	for range 100 {
		time.Sleep(time.Until(b.Next()))
		w, err := b.Sync(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, w.Gaps...)
		if len(b.Gaps(busy.ID)) == 0 {
			break
		}
	}
	if gaps := b.Gaps(busy.ID); len(gaps) != 0 || len(ids) != 1 || ids[0] != busy.ID {
		t.Errorf("gaps of a port that is free: %v, ports with other gaps: %v", gaps, ids)
	}
}
