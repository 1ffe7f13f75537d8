// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// nothing compiles every state to no object.
type nothing struct {
	dataplane.SimpleCompiler[string, string]
}

func (nothing) Base(*model.Host, func(string, string)) {}

func (nothing) Port(*model.Host, *model.Port, func(string, string)) []model.Gap { return nil }
func (nothing) Rank(string) int                                                 { return 0 }
func (nothing) Equal(a, b string) bool                                          { return a == b }

// bare returns a configuration that leaves the machine alone.
func bare() *config.Config {
	c := config.Default()
	c.NodeName, c.NodeIsHost = "here", true
	c.Conntrack, c.OOMScoreAdj = config.Conntrack{}, nil
	return &c
}

func TestReconfigure(t *testing.T) {
	p := &Proxy{running: t.Context(), system: portable(), config: bare(), log: slog.New(slog.DiscardHandler), machine: &machine{}, network: &machineNetwork{}}
	p.live.Store(p.config)
	p.base = p.config
	backend := dataplane.New(nothing{}, memory.New[string](nothing{}.Equal, dataplane.Limits{}))
	hosts := make(chan *model.Host, 10)
	p.engine = engine.New(engine.Options{
		Host: func(n *model.Node, cidrs []*model.ServiceCIDR) (*model.Host, []model.Problem) {
			h, problems := p.host(n, cidrs)
			hosts <- h
			return h, problems
		},
		NodeName: "here", Mode: dataplane.Mode{Name: "table"}, Backend: backend, AuditEvery: time.Hour, Log: p.log,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.engine.Run(ctx) }()
	defer func() { cancel(); <-done }()
	p.engine.Synced(true)
	<-hosts

	next := bare()
	next.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	next.MasqueradeBit = 3
	p.Reconfigure(next, "config.conf")
	if h := <-hosts; h.Name != "here" || !slices.Equal(h.Pods.CIDRs, next.ClusterCIDRs) {
		t.Errorf("node %q, pods %v", h.Name, h.Pods)
	}
	problems := func() []model.Problem {
		s, err := p.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Problems
	}
	want := model.Problem{
		Object: "configuration iptables.masqueradeBit", Where: "config.conf", Why: model.WhyRestart,
		Detail: "from 14 to 3, and installed rules contain it",
	}
	if got := problems(); !slices.Equal(got, []model.Problem{want}) {
		t.Errorf("problems: %v", got)
	}
	p.Misconfigured([]config.Finding{{Where: "config.conf:3", Name: "mode", Text: "bad"}}, "config.conf")
	if got := problems(); len(got) != 1 || got[0].Where != "config.conf:3" || got[0].Why != model.WhyInvalid {
		t.Errorf("problems: %v", got)
	}
	// The mode that is in use is named now: it is not opened again, so the rest still waits.
	inUse := dataplane.Mode{Name: "table", Probe: func(context.Context) error { return nil }}
	p.system.modes = func() []dataplane.Mode { return []dataplane.Mode{inUse} }
	named := *next
	named.Mode = inUse.Name
	p.Reconfigure(&named, "config.conf")
	<-hosts
	if got := problems(); !slices.Equal(got, []model.Problem{want}) {
		t.Errorf("with the mode named: problems %v", got)
	}
	p.Reconfigure(bare(), "config.conf")
	if h := <-hosts; len(problems()) > 0 || len(h.Pods.CIDRs) > 0 {
		t.Errorf("as at the start, but %v, %v", h.Pods, problems())
	}
}

// What could not be opened is reported, and not closed.
func TestWhatCannotBeOpenedIsReported(t *testing.T) {
	wrong := errors.New("permission denied")
	// To close a nil pointer of these is a crash.
	for what, change := range map[string]func(*system){
		"lock":    func(s *system) { s.lock = func() (Held, error) { return (*struct{ Held })(nil), wrong } },
		"network": func(s *system) { s.network = func() (network, error) { return (*struct{ network })(nil), wrong } },
	} {
		s, c := portable(), bare()
		c.Manifests = t.TempDir()
		change(&s)
		if p, err := s.open(t.Context(), c, "test", slog.New(slog.DiscardHandler)); p != nil || !errors.Is(err, wrong) {
			t.Errorf("%s: %v, %v", what, p, err)
		}
	}
}

// A system of no nodes says so, and where to ask: it serves nothing, removes nothing, and has
// no control socket.
func TestNoNode(t *testing.T) {
	s, c := asking("darwin"), bare()
	c.Manifests = t.TempDir()
	const want = "no tandem runs on darwin: nodes have Linux or Windows; ask theirs with tandem kubectl"
	p, err := s.open(t.Context(), c, "test", slog.New(slog.DiscardHandler))
	if p != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("runs: %v, %v", p, err)
	}
	if held, err := s.lock(); held != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the lock of cleanup: %v, %v", held, err)
	}
	if err := s.set(c, slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("--init-only: %v", err)
	}
	if s.noNode == nil || !strings.HasPrefix(s.noNode.Error(), want) {
		t.Errorf("install: %v", s.noNode)
	}
	if _, err := s.dialControl(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the control socket: %v", err)
	}
}
