// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// needModes skips the test where a mode does not work, in the namespace of this thread.
func needModes(t *testing.T, names ...config.Mode) {
	t.Helper()
	for _, name := range names {
		m, err := platform.Find(name)
		if err == nil {
			err = m.Probe(t.Context())
		}
		if err != nil {
			t.Skipf("mode %s does not work here: %v", name, err)
		}
	}
}

// An earlier run has programmed another mode, and there is no API server now: that
// mode is the only one that serves. A switch back to it is rejected, and does not change it.
func TestSwitchBeforeTheFirstSyncRemovesNothing(t *testing.T) {
	const before, now = "iptables", "nftables"
	net := newNet(t)
	c := config.Default()
	c.NodeName, c.HTTPAddress, c.HealthAddress = "n1", "", ""
	c.Conntrack, c.OOMScoreAdj = config.Conntrack{}, nil
	inside := func(f func() error) {
		t.Helper()
		if err := net.Do(netns.Node, f); err != nil {
			t.Fatal(err)
		}
	}
	inside(func() error { needModes(t, before, now); return nil })
	// run has a proxy do something, and ends it.
	run := func(c config.Config, do func(*platform.Proxy)) {
		t.Helper()
		var p *platform.Proxy
		inside(func() (err error) {
			p, err = platform.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
			return err
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		do(p)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	installed := func() (n int) {
		inside(func() error {
			m, err := platform.Find(before)
			if err != nil {
				return err
			}
			b, err := m.Open(t.Context(), &c, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			err = b.Adopt(t.Context())
			n = b.Health().Objects
			return errors.Join(err, b.Close())
		})
		return n
	}
	earlier := c
	earlier.Mode, earlier.Manifests = before, t.TempDir()
	if err := os.WriteFile(filepath.Join(earlier.Manifests, "web.yaml"), []byte(web), 0o644); err != nil {
		t.Fatal(err)
	}
	run(earlier, func(p *platform.Proxy) { p.Ready(t.Context()) })
	was := installed()
	if was == 0 {
		t.Fatal("the earlier run has left nothing")
	}
	c.Mode, c.API.Server = now, "http://127.0.0.1:1"
	run(c, func(p *platform.Proxy) {
		inside(func() error {
			if _, err := p.Switch(t.Context(), before, func(string) {}); !errors.Is(err, engine.ErrNotReady) {
				t.Errorf("switched: %v", err)
			}
			return nil
		})
	})
	if is := installed(); is != was {
		t.Errorf("%d objects are left of %d", is, was)
	}
}
