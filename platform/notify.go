package platform

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/status"
)

// manager is the service manager that has started this process and wants to
// hear of it: sd_notify(3).
type manager struct {
	tell     func(state string) // sends it; systemd loses nothing that was sent
	watchdog time.Duration      // how long it bears silence; 0 for ever
	patience time.Duration      // how long a start may take before it counts as one
	tick     time.Duration      // how often the proxy is looked at
}

// serviceManager returns the manager that the environment names, or nil.
func serviceManager(log *slog.Logger) *manager {
	silence, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the watchdog of the service manager is not understood, and not served", "error", err)
	}
	m := &manager{watchdog: silence, patience: 30 * time.Second, tick: 100 * time.Millisecond}
	m.tell = func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			log.Warn("the service manager cannot be told", "state", state, "error", err)
		}
	}
	if ok, err := daemon.SdNotify(false, "STATUS=starting"); err == nil && !ok {
		return nil // nobody listens
	}
	return m
}

// notify tells the service manager, until ctx ends, what the proxy does: READY
// after the first sync, a line of status whenever that changes, and a sign of
// life for the watchdog while the engine answers and a restart would not help.
//
// An API server that is down does not keep the node from starting: it may run on
// this very node. After a while of waiting the start counts as done, and the
// status says what is missing.
func (p *Proxy) notify(ctx context.Context, m *manager) {
	if m == nil {
		return
	}
	defer m.tell(daemon.SdNotifyStopping)
	begun, ready, last, alive := time.Now(), false, "", time.Time{}
	tick := time.NewTicker(m.tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h := p.health()
		if line := p.summary(h); line != last {
			last = line
			m.tell("STATUS=" + line)
		}
		if !ready && (h.Synced || time.Since(begun) > m.patience) { // behind the status: whoever waits for it reads that next
			ready = true
			m.tell(daemon.SdNotifyReady)
			tick.Reset(m.pace())
		}
		if m.watchdog > 0 && time.Since(alive) > m.watchdog/4 && p.lives(ctx, h, m.watchdog/4) {
			alive = time.Now()
			m.tell(daemon.SdNotifyWatchdog)
		}
	}
}

// pace is how often a proxy that is ready is looked at.
func (m *manager) pace() time.Duration {
	if m.watchdog > 0 {
		return min(m.watchdog/4, 2*time.Second)
	}
	return 2 * time.Second
}

// lives reports whether the proxy works, or at least whether a restart would
// not make it.
func (p *Proxy) lives(ctx context.Context, h status.Health, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return h.Alive() && p.Ping(ctx) == nil
}

// summary is the line that `systemctl status` shows.
func (p *Proxy) summary(h status.Health) string {
	services := p.Status().Services
	total := 0
	for _, n := range services {
		total += n
	}
	line := fmt.Sprintf("mode %s, %d Services", p.current().Name, total)
	if bad := total - services[model.Programmed]; bad > 0 {
		line += fmt.Sprintf(", %d of them not as asked for: see tandem status", bad)
	}
	if len(h.Reasons) > 0 {
		line += "; " + strings.Join(h.Reasons, "; ")
	}
	return printable.Text(line)
}
