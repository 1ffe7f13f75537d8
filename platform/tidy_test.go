package platform

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/dataplane/memory"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// A proxy that ends before it has tidied up ends all the same.
func TestTidyGivesUpWhenTheProxyEnds(t *testing.T) {
	here, err := place()
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{log: slog.New(slog.DiscardHandler), place: here, switching: make(turn, 1), tidied: make(chan struct{})}
	p.Engine = engine.New(engine.Options{
		Host:     func(*model.Node, []*model.ServiceCIDR) *model.Host { return &model.Host{} },
		NodeName: "here", Backend: dataplane.New(nothing{}, memory.New[string](nothing{}.Equal, dataplane.Limits{})),
		AuditEvery: time.Hour, Log: p.log,
	})
	running, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Engine.Run(running) }()
	defer func() { stop(); <-done }()
	p.Synced(true)
	if !p.Ready(t.Context()) {
		t.Fatal("nothing was programmed")
	}
	p.switching <- struct{}{} // for good, as when orders have ended
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	go p.tidy(ctx)
	select {
	case <-p.tidied:
	case <-time.After(10 * time.Second):
		t.Error("it waits for a switch that has no end")
	}
}

func TestTurn(t *testing.T) {
	turns := make(turn, 1)
	if err := turns.take(t.Context()); err != nil || turns.try() {
		t.Errorf("taken: %v, and once more", err)
	}
	turns.give()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := turns.take(ctx); !errors.Is(err, context.Canceled) || !turns.try() {
		t.Errorf("taken after the end: %v", err)
	}
}
