// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// TestCorpus runs every scenario with a whole tandem in each mode to which a network namespace is a node, and in
// each flavour of it. Where only a Part is run each scenario is in one flavour of a mode: the rules of iptables' two
// variants are the same, and so are the relays behind either redirection.
func TestCorpus(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		some := []int{0, 1, 2}
		switch flavour.name {
		case "iptables-legacy", "userspace":
			some = []int{1, 2}
		case "iptables-nft", "userspace-nft":
			some = []int{0}
		}
		Corpus(t, Part(t, 3, some...), maker(mode, flavour))
	})
}

// maker makes a whole tandem in a flavour of a mode.
func maker(mode dataplane.Mode, flavour flavour) Make {
	return func(net *lab.Net, s *conformance.Scenario) (Proxy, error) {
		enter := func(f func() error) error { return net.Do(lab.Node, f) }
		loopback := s.Host.NodePorts.Localhost || resolve.Host(&s.Host, nil, nil, s.Machine).NodePorts.OnLoopback()
		if mode.Name == relay.Mode || loopback { // opens sockets whenever it likes
			return &remote{mode: mode.Name, enter: enter, wrap: flavour.wrap}, nil
		}
		return &tandem{mode: mode.Name, enter: enter}, nil
	}
}

// works reports whether a mode works here, trying it in a node of its own.
func works(ctx context.Context, mode dataplane.Mode) error {
	if err := lab.Available(); err != nil {
		return err
	}
	net, err := lab.New(ctx, lab.Plan{})
	if err != nil {
		return err
	}
	return errors.Join(net.Do(lab.Node, func() error { return mode.Probe(ctx) }), net.Close())
}

// tandem is a whole proxy on the lab's node, but for the command line.
type tandem struct {
	mode   config.Mode
	enter  func(func() error) error // runs a function on the node
	dir    string
	host   config.Config
	proxy  *platform.Proxy
	cancel context.CancelFunc
	done   chan error
	marks  int
	gaps   []gap
	hashed []front // those of Services that ask for sh, where the mode has it
}

// front is a frontend and its protocol.
type front struct {
	at    netip.AddrPort
	proto model.Proto
}

// gap is a model.Gap and the protocol it is about.
type gap struct {
	model.Gap
	Proto model.Proto
}

func (p *tandem) Start(ctx context.Context, dir string, host config.Config) error {
	host.Mode, host.Manifests, host.HTTPAddress = p.mode, dir, ""
	p.dir, p.host = dir, host
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	err := p.enter(func() (err error) {
		p.proxy, err = platform.Open(ctx, &host, "test", log)
		return err
	})
	if err != nil {
		return err
	}
	ctx, p.cancel = context.WithCancel(context.Background())
	p.done = make(chan error, 1)
	go func() { p.done <- p.proxy.Run(ctx) }()
	return nil
}

// Changed puts a mark into the folder, behind everything else, and waits until the proxy
// has programmed it; then another one: the folder may have been read while it changed,
// with the first mark and old files, but not again with the second. An old mark is removed
// with its file: removals are sent after additions.
func (p *tandem) Changed(ctx context.Context) error {
	return errors.Join(p.mark(ctx), p.mark(ctx))
}

func (p *tandem) mark(ctx context.Context) error {
	p.marks++
	tmp := filepath.Join(p.dir, ".mark")
	if err := os.WriteFile(tmp, mark(p.marks), 0o644); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(p.dir, "zzz-mark.yaml")); err != nil {
		return err
	}
	for {
		s, err := p.proxy.Snapshot(ctx)
		if err != nil {
			return err
		}
		if p.marked(s) && p.proxy.Status().QueuedAt.IsZero() {
			p.note(s)
			return nil
		}
		select {
		case err := <-p.done:
			p.done <- nil
			return errors.Join(errors.New("the proxy ended"), err)
		case <-ctx.Done():
			return fmt.Errorf("mark %d is not programmed: %w (%v)", p.marks, ctx.Err(), p.proxy.Status().Err)
		case <-time.After(time.Millisecond):
		}
	}
}

func (p *tandem) Stop() error {
	if p.cancel == nil {
		return nil
	}
	p.cancel()
	return <-p.done
}

// Gap reports whether the mode has declared that it does not support a row.
func (p *tandem) Gap(row conformance.Packet) (model.Gap, bool) {
	if row.Expect.Same && p.mode == "ipvs" {
		return model.Gap{Detail: "the kernel remembers clients for each address and port alone"}, true
	}
	return find(p.gaps, row)
}

func (p *tandem) OneForAClient(row conformance.Packet) bool {
	return slices.Contains(p.hashed, front{row.To, row.Proto})
}

// sctpDrop is what the whole mode userspace does not do: see its Excuse.
func sctpDrop(row conformance.Packet) (model.Gap, bool) {
	return model.Gap{Detail: "SCTP is rejected where other protocols are dropped"}, row.Proto == model.SCTP && row.Expect.Fate == oracle.Drop
}

func find(gaps []gap, row conformance.Packet) (model.Gap, bool) {
	any := model.FamilyOf(row.To.Addr()).Unspecified()
	for _, g := range gaps {
		if g.Proto == row.Proto && (g.Frontend == row.To || g.Frontend == netip.AddrPortFrom(any, row.To.Port())) {
			return g.Gap, true
		}
	}
	return model.Gap{}, false
}

// marked reports whether the newest mark is the only one, and resolved.
func (p *tandem) marked(s *engine.Snapshot) bool {
	newest := false
	for _, svc := range s.Services {
		if svc.Object.Name.Namespace != markNamespace {
			continue
		}
		if svc.Object.Name.Name != markName(p.marks) || len(svc.Ports) == 0 {
			return false
		}
		newest = true
	}
	return newest
}

// note keeps what the mode cannot do, by front, and what it does by sh.
func (p *tandem) note(s *engine.Snapshot) {
	p.gaps, p.hashed = nil, nil
	for _, svc := range s.Services {
		for _, port := range svc.Ports {
			if port.Scheduler == model.SourceHash && p.mode == "ipvs" {
				for _, f := range port.Frontends {
					p.hashed = append(p.hashed, front{f.At, port.ID.Proto})
				}
			}
			for _, g := range s.Backend.Gaps[port.ID] {
				if g.Frontend.IsValid() {
					p.gaps = append(p.gaps, gap{g, port.ID.Proto})
					continue
				}
				for _, f := range port.Frontends { // the whole port
					p.gaps = append(p.gaps, gap{model.Gap{Frontend: f.At, Detail: g.Detail, Source: g.Source}, port.ID.Proto})
				}
			}
		}
	}
}

const markNamespace = "marks-of-the-test"

func markName(n int) string { return fmt.Sprintf("mark-%d", n) }

func mark(n int) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec:
  clusterIP: 10.96.255.%d
  clusterIPs: [10.96.255.%d]
  ipFamilies: [IPv4]
  ports: [{port: 9, protocol: TCP}]
`, markName(n), markNamespace, n, n)
}

// eachFlavour runs a test in each flavour of each mode to which a network namespace
// is a node; one that does not work here is skipped with the reason.
func eachFlavour(t *testing.T, test func(*testing.T, dataplane.Mode, flavour)) {
	for _, mode := range platform.Local() {
		if !mode.Conntrack && mode.Name != relay.Mode {
			continue
		}
		for _, flavour := range flavours(mode) {
			t.Run(flavour.name, func(t *testing.T) {
				flavour.prepare(t)
				if err := works(t.Context(), mode); err != nil {
					t.Skip(err)
				}
				test(t, mode, flavour)
			})
		}
	}
}
