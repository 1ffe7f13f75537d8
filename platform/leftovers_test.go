// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"log/slog"
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
