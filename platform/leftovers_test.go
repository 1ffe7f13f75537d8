// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// A proxy that ends before it has removed leftovers ends all the same.
func TestRemovingLeftoversEndsWithTheProxy(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	s := &switcher{privileged: portable().privileged, network: &machineNetwork{}, log: log, clean: make(chan struct{}), turn: make(sleep.Turn, 1)}
	s.engine = engine.New(engine.Options{
		Host:     func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem) { return &model.Host{}, nil },
		NodeName: "here", Backend: dataplane.New(nothing{}, memory.New[string](nothing{}.Equal, dataplane.Limits{})),
		AuditEvery: time.Hour, Log: log,
	})
	running, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.engine.Run(running) }()
	defer func() { stop(); <-done }()
	s.engine.Synced(true)
	<-s.engine.Programmed()
	s.turn <- struct{}{} // for good, as when the control socket is closed
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	c := config.Default()
	go s.removeLeftovers(ctx, &c)
	select {
	case <-s.clean:
	case <-time.After(10 * time.Second):
		t.Error("it waits for a switch that has no end")
	}
}

// Where no mode can tell what kube-proxy has left, --takeover says so: on Windows HNS does not say
// who made a load balancer.
func TestTakeOverWithoutEffectIsReported(t *testing.T) {
	for _, finds := range []bool{false, true} {
		var log bytes.Buffer
		mode := dataplane.Mode{Name: "any"}
		if finds {
			mode.KubeProxy = func(context.Context) (dataplane.Leftovers, error) { return dataplane.Leftovers{}, nil }
		}
		c := config.Default()
		c.TakeOver = true
		(&switcher{modes: []dataplane.Mode{mode}, log: slog.New(slog.NewTextHandler(&log, nil))}).checkKubeProxy(t.Context(), &c)
		if said := strings.Contains(log.String(), "--takeover has no effect"); said == finds {
			t.Errorf("a mode finds kube-proxy's rules: %t; logged: %q", finds, log.String())
		}
	}
}
