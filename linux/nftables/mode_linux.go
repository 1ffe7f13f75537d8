package nftables

import (
	"context"
	"errors"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// probe tries IPv4, which every node needs. Where the kernel has no nftables for
// IPv6, openBackend serves IPv4 alone, and ports of IPv6 are Gaps.
func probe(ctx context.Context) error { return Probe(ctx, model.IPv4) }

func openBackend(c *config.Config) (dataplane.Backend, error) {
	o := options(c)
	switch err := Probe(context.Background(), model.IPv6); {
	case errors.Is(err, ErrForeign): // the kernel can do it: somebody must decide whose the name is
		return nil, err
	case err != nil:
		o.Families = []model.Family{model.IPv4}
	}
	d, err := Open(o)
	if err != nil {
		return nil, err
	}
	return dataplane.New(NewCompiler(o), d), nil
}
