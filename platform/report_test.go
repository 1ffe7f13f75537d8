// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/metrics"
)

// A namespace that drops frontends with each of its changes fills no log.
func TestDroppedFrontendsFillNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newReporter("a", metrics.Sources{}, slog.New(slog.NewTextHandler(&log, nil)))
		for range 1000 {
			r.flowsDropped("evil", 2)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(droppedEvery)
		r.flowsDropped("other", 3)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.HasSuffix(lines[0], "namespace=evil frontends=2 unlogged=0") || !strings.HasSuffix(lines[1], "namespace=other frontends=3 unlogged=1998") {
			t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
		}
	})
}
