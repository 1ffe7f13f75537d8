package iptables

import (
	"context"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

func probe(ctx context.Context) error {
	_, err := probeHost(ctx)
	return err
}

// openBackend opens the variant that the host uses. Where IPv6 cannot be had,
// IPv4 is served alone, and ports of IPv6 are Gaps.
func openBackend(c *config.Config) (dataplane.Backend, error) {
	f, err := probeHost(context.Background())
	if err != nil {
		return nil, err
	}
	o := options(c)
	o.Families, o.NoRandomFully = f.families, f.noRandomFully
	d, err := open(f.tools, o.Families)
	if err != nil {
		return nil, err
	}
	return dataplane.New(NewCompiler(o), d), nil
}
