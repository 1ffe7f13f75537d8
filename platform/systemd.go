// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/status"
)

// serviceManager is the one that has started this process and wants to be notified:
// sd_notify(3).
type serviceManager struct {
	send     func(state string) // systemd loses nothing that was sent
	watchdog time.Duration      // the longest time between keep-alives; 0 for none
	patience time.Duration      // how long a start may take before it counts as done
	tick     time.Duration      // how often the proxy is looked at
}

// openServiceManager returns the one that the environment names, or nil.
func openServiceManager(log *slog.Logger) *serviceManager {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("invalid WATCHDOG_USEC; watchdog disabled", "err", err)
	}
	m := &serviceManager{watchdog: watchdog, patience: 30 * time.Second, tick: 100 * time.Millisecond}
	m.send = func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			log.Warn("notifying the service manager failed", "state", state, "err", err)
		}
	}
	if ok, err := daemon.SdNotify(false, "STATUS=starting"); err == nil && !ok {
		return nil // not started by one
	}
	return m
}

// notify reports the proxy's state to the service manager until ctx ends: READY
// after the first sync, a line of status whenever that changes, and a keep-alive
// for the watchdog while the engine answers and a restart would not help.
//
// An API server that is down does not keep the node from starting: it may run on
// this very node. After a while of waiting the start counts as done, and the
// status has the missing parts.
func (m *serviceManager) notify(ctx context.Context, e *engine.Engine, health func() status.Health) {
	if m == nil {
		return
	}
	defer m.send(daemon.SdNotifyStopping)
	begun, ready, last, alive := time.Now(), false, "", time.Time{}
	tick := time.NewTicker(m.tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h := health()
		if line := statusLine(e.Current().Mode.Name, e.Status(), h); line != last {
			last = line
			m.send("STATUS=" + line)
		}
		if !ready && (h.Synced || time.Since(begun) > m.patience) { // after the status, which may be read next
			ready = true
			m.send(daemon.SdNotifyReady)
			tick.Reset(m.pace())
		}
		if m.watchdog > 0 && time.Since(alive) > m.watchdog/4 && h.Alive() && answers(ctx, e, m.watchdog/4) {
			alive = time.Now()
			m.send(daemon.SdNotifyWatchdog)
		}
	}
}

// pace is how often a proxy that is ready is looked at.
func (m *serviceManager) pace() time.Duration {
	if m.watchdog > 0 {
		return min(m.watchdog/4, 2*time.Second)
	}
	return 2 * time.Second
}

func answers(ctx context.Context, e *engine.Engine, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return e.Ping(ctx) == nil
}

// statusLine is what `systemctl status` shows.
func statusLine(mode config.Mode, s engine.Status, h status.Health) string {
	total := 0
	for _, n := range s.Services {
		total += n
	}
	line := fmt.Sprintf("mode %s, %s", mode, printable.Count(total, "Service"))
	if bad := total - s.Services[model.Programmed]; bad > 0 {
		line += fmt.Sprintf(", %d of them not fully programmed: see tandem status", bad)
	}
	if len(h.Reasons) > 0 {
		line += "; " + strings.Join(h.Reasons, "; ")
	}
	return printable.Text(line)
}
