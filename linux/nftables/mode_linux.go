package nftables

import (
	"context"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

func probe(ctx context.Context) error { return Probe(ctx) }

func openBackend(c *config.Config) (dataplane.Backend, error) {
	d, err := Open(options(c))
	if err != nil {
		return nil, err
	}
	return dataplane.New(NewCompiler(options(c)), d), nil
}
