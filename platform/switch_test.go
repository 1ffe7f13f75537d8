// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
)

// lasting is a data plane whose connections do not end.
type lasting struct{ dataplane.Backend }

func (lasting) Drain(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (lasting) Close() error { return nil }

// Who waits for an old mode waits no longer than its own request; the mode drains on.
func TestRetireEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, end := context.WithCancel(t.Context())
		s := &switcher{log: slog.New(slog.DiscardHandler), running: running, group: &sync.WaitGroup{}, retiring: map[config.Mode]retirement{}}
		waiting, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		if !s.retire(waiting, engine.DataPlane{Mode: dataplane.Mode{Name: "iptables"}, Backend: lasting{}}) || time.Since(begun) > 0 {
			t.Errorf("waited for %s", time.Since(begun))
		}
		select {
		case <-s.retiring["iptables"].done:
			t.Error("the drain ended with the request")
		default:
		}
		end()
		s.group.Wait()
	})
}

// A mode that is to be used again is no leftover: only the end of the proxy leaves something to
// clean up.
func TestWhyAnOldModeIsNotRemoved(t *testing.T) {
	const mode config.Mode = "iptables"
	for _, again := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			running, end := context.WithCancel(t.Context())
			defer end()
			s := &switcher{
				log: slog.New(slog.NewTextHandler(&log, nil)), running: running, group: &sync.WaitGroup{}, retiring: map[config.Mode]retirement{},
			}
			if !s.retire(t.Context(), engine.DataPlane{Mode: dataplane.Mode{Name: mode}, Backend: lasting{}}) {
				t.Error("the mode does not drain")
			}
			if again {
				if err := s.cancelRetirement(t.Context(), mode); err != nil {
					t.Error(err)
				}
			}
			end()
			s.group.Wait()
			if got := log.String(); strings.Count(got, "\n") != 1 || strings.Contains(got, "switching back") != again || strings.Contains(got, "run tandem cleanup") == again {
				t.Errorf("used again: %v, logged:\n%s", again, got)
			}
		})
	}
}
