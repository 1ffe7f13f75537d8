// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// spoiled compiles one port into a rule that no iptables takes.
type spoiled struct {
	*Compiler
	port model.PortID
}

func (s spoiled) Port(host *model.Host, p *model.Port, emit func(Key, Value)) []model.Gap {
	return s.Compiler.Port(host, p, func(k Key, v Value) {
		if p.ID == s.port && strings.HasPrefix(k.Chain, prefixCluster) {
			v = xtables.List(xtables.JumpTo("NO-SUCH-CHAIN-HERE"))
		}
		emit(k, v)
	})
}

// One Service that iptables-restore rejects is found and reported; all others work.
func TestABadServiceAloneIsReported(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		ports := manyPorts(40)
		bad := ports[17]
		b := dataplane.New(spoiled{NewCompiler(Options{Families: []model.Family{model.IPv4}}), bad.ID}, k.driver())
		if err := b.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.SetHost(benchHost)
		var deltas []model.Delta
		for _, p := range ports {
			deltas = append(deltas, model.Delta{New: p})
		}
		b.Update(deltas)
		work, err := b.Sync(t.Context())
		if err == nil || !strings.Contains(err.Error(), bad.ID.String()) || work.BatchErr == nil {
			t.Errorf("the Service is not named, or the reason for splitting a transaction is not reported: %v, %+v", err, work)
		}
		if f := b.Health().Failures; len(f) != 1 || f[bad.ID] == nil {
			t.Errorf("failures: %v", f)
		}
		rules := k.save()
		for _, p := range ports {
			if served := strings.Contains(rules, "-j "+prefixCluster+portHash(p.ID)); served == (p == bad) {
				t.Errorf("%s is served: %t", p.ID, served)
			}
		}
	})
}

// loop is an engine at work in a kernel.
type loop struct {
	*engine.Engine
	syncs atomic.Int64 // those that wrote something
}

func (k *kernel) loop() *loop {
	k.t.Helper()
	backend := dataplane.New(NewCompiler(Options{Families: []model.Family{model.IPv4}}), k.driver())
	l := &loop{}
	l.Engine = engine.New(engine.Options{
		Host:    func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem) { return benchHost, nil },
		Backend: backend, AuditEvery: time.Hour, Log: slog.New(slog.DiscardHandler),
		Hooks: engine.Hooks{Synced: func(s engine.Sync) {
			if s.Work.Commits > 0 {
				l.syncs.Add(1)
			}
		}},
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	k.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			k.t.Error(err)
		}
	})
	l.Synced(true)
	l.eventually(k.t, "the skeleton", func() bool { s := l.Status(); return s.Synced && s.Err == nil })
	return l
}

// serve adds a Service with one endpoint.
func (l *loop) serve(i int) {
	n := model.ServiceName{Namespace: "default", Name: fmt.Sprint("late-", i)}
	l.Set(&model.Service{
		Name: n, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
	})
	l.Set(&model.Slice{
		Name: model.SliceName(n), Service: n.Name, Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}},
		Endpoints: []model.SliceEndpoint{{Addr: netip.AddrFrom4([4]byte{10, 128, 1, byte(i)}), State: model.Ready | model.Serving}},
	})
}

func (l *loop) eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not done after all this time: %+v", what, l.Status())
		}
	}
}

// settled reports whether everything is programmed.
func (l *loop) settled() bool {
	s := l.Status()
	return s.Done == s.Seen && s.Err == nil && s.QueuedAt.IsZero()
}

// Changes that arrive while a restore runs are one batch.
func TestChangesDuringARestoreAreOneBatch(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		slow, held, begun := filepath.Join(t.TempDir(), "restore"), filepath.Join(t.TempDir(), "held"), filepath.Join(t.TempDir(), "begun")
		script := fmt.Sprintf("#!/bin/sh\ntouch %s\nwhile [ -e %s ]; do sleep 0.01; done\nexec %s \"$@\"\n", begun, held, k.tools.Paths[model.IPv4].Restore)
		if err := os.WriteFile(slow, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		k.tools.Paths[model.IPv4].Restore = slow
		l := k.loop()
		before := l.syncs.Load()
		if err := errors.Join(os.Remove(begun), os.WriteFile(held, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		const n = 50
		l.serve(0)
		l.eventually(t, "the restore begins", func() bool { _, err := os.Stat(begun); return err == nil })
		for i := 1; i < n; i++ {
			l.serve(i)
		}
		if err := os.Remove(held); err != nil {
			t.Fatal(err)
		}
		l.eventually(t, "all changes", l.settled)
		if got := l.syncs.Load() - before; got > 4 {
			t.Errorf("%d changes within one restore took %d syncs", n, got)
		}
		if got := strings.Count(k.save(), "-A "+prefixCluster); got < n {
			t.Errorf("%d of %d Services are served", got, n)
		}
	})
}

// holdLock is for how long another program keeps the lock: longer than a restore
// waits for it. TANDEM_TEST_LOCK_HELD=1m takes the time that it is said to.
func holdLock(t *testing.T) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("TANDEM_TEST_LOCK_HELD")); err == nil {
		return d
	}
	t.Log("the lock is held for 3 s; TANDEM_TEST_LOCK_HELD=1m makes it longer")
	return 3 * time.Second
}

// While the lock is held by others the proxy continues to take changes, fails at
// nothing, and does everything at once as soon as it can.
func TestTheLockHeldForLong(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		if k.tools.Variant != xtables.Legacy {
			t.Skip("only the legacy variant has a lock")
		}
		l := k.loop()
		lock, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		held := holdLock(t)
		const n = 20
		for i := range n {
			l.serve(i)
			time.Sleep(held / n)
		}
		snapshot, err := l.Snapshot(t.Context())
		if err != nil || len(snapshot.Backend.Failures) != 0 {
			t.Errorf("failures while the lock was held: %v (%v)", snapshot.Backend.Failures, err)
		}
		if strings.Contains(k.save(), "late-") {
			t.Error("something was written while another program held the lock")
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
		free := time.Now()
		l.eventually(t, "all changes", func() bool { return strings.Count(k.save(), "-A "+prefixCluster) >= n })
		if took := time.Since(free); took > 20*time.Second {
			t.Errorf("done %s after the lock was free", took)
		}
		l.eventually(t, "no error any more", l.settled)
	})
}
