package main

import (
	"context"
	"net/netip"
	"os"
	"runtime/debug"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// aloneAddr is where the relay without rules listens.
const aloneAddr = "127.0.0.1:9003"

// aloneVerb starts this program as such a relay: a process of its own, like all
// others that are measured.
const aloneVerb = "serve"

// alone is the relay as a library: what it takes less than tandem are the rules,
// the flow table of the kernel behind them and the rest of the program.
func alone() proxy {
	return proxy{"relay alone", func(ctx context.Context) (*running, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return launch(ctx, aloneAddr, nil, self, aloneVerb)
	}}
}

// serveAlone serves until ctx ends.
func serveAlone(ctx context.Context) error {
	debug.SetGCPercent(30) // as tandem does
	s := relay.NewServer(relay.Options{})
	policy := relay.Same(relay.Answer{Verdict: model.Balance, Endpoints: []netip.AddrPort{netip.MustParseAddrPort(endpointAddr)}})
	if _, err := s.Listen(model.TCP, netip.MustParseAddrPort(aloneAddr), policy); err != nil {
		return err
	}
	<-ctx.Done()
	return s.Close(0)
}
