// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// A configuration that changes before the proxy runs changes nothing that cannot
// be changed yet, and does no harm.
func TestReconfigureBeforeRun(t *testing.T) {
	net := newNet(t)
	c := config.Default()
	c.HTTPAddress, c.HealthAddress, c.Manifests, c.Mode = "", "", t.TempDir(), "nftables"
	c.Conntrack, c.OOMScoreAdj = config.Conntrack{}, nil
	next := c
	next.Mode = "iptables"
	var p *platform.Proxy
	if err := net.Do(netns.Node, func() (err error) {
		needModes(t, c.Mode, next.Mode)
		p, err = platform.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() {
		told <- net.Do(netns.Node, func() error { _, _ = p.Reconfigure(&next, "config.conf"); return nil })
	}()
	time.Sleep(100 * time.Millisecond) // so that it comes first, most often
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	if err := <-told; err != nil {
		t.Error(err)
	}
	if !p.Ready(ctx) {
		t.Error("the proxy serves nothing")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
