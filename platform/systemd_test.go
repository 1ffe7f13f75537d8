// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
)

// listener is a service manager that records notifications.
type listener struct {
	mu   sync.Mutex
	told []string
}

func (l *listener) tell(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, s)
}

func (l *listener) received() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.told, "|")
}

func (l *listener) await(t *testing.T, what string) {
	t.Helper()
	for range 500 {
		if strings.Contains(l.received(), what) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %q in %q", what, l.received())
}

// notifyHung notifies a service manager of an engine that does not run.
func notifyHung(ctx context.Context, m *serviceManager) {
	e := engine.New(engine.Options{
		Host: func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem) { return nil, nil }, Mode: dataplane.Mode{Name: config.NFTables}, Log: slog.New(slog.DiscardHandler),
	})
	m.notify(ctx, e, func() question.Health { return question.HealthOf(e.Status(), time.Minute, nil) })
}

// A start that lasts counts as one after a while, and states what it waits for;
// the watchdog is not fed while the engine does not answer.
func TestNotifyWithoutSync(t *testing.T) {
	var l listener
	m := serviceManager{send: l.tell, watchdog: 80 * time.Millisecond, patience: 100 * time.Millisecond, tick: 5 * time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { notifyHung(ctx, &m); close(done) }()
	l.await(t, "STATUS=mode nftables, 0 Services; the data plane has not been read back yet")
	l.await(t, "READY=1")
	time.Sleep(200 * time.Millisecond)
	stop()
	<-done
	if received := l.received(); strings.Contains(received, "WATCHDOG") || !strings.HasSuffix(received, "STOPPING=1") || strings.Count(received, "READY") != 1 ||
		strings.Index(received, "READY") < strings.Index(received, "STATUS") {
		t.Errorf("received %q", received)
	}
}

// Without a listener nothing is sent, and nothing fails. One that is gone
// is a warning.
func TestServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	if m := openServiceManager(slog.New(slog.DiscardHandler)); m != nil {
		t.Error("a manager without a socket")
	}
	notifyHung(t.Context(), nil)
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	m := openServiceManager(slog.New(slog.DiscardHandler))
	if m == nil {
		t.Fatal("a manager that does not answer yet may do so later")
	}
	m.send("READY=1")
}
