package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
)

// probe tries IPv4, which every node needs. Where the kernel has no nftables for
// IPv6, openBackend serves IPv4 alone, and ports of IPv6 are Gaps.
func probe(ctx context.Context) error { return Probe(ctx, model.IPv4) }

func openBackend(c *config.Config) (dataplane.Backend, error) {
	o := options(c)
	o.Liberal = o.Liberal || host.TCPLiberal()
	if err := Check(Table, model.IPv4); errors.Is(err, dataplane.ErrAbsent) {
		return nil, advise(err)
	}
	switch err := Probe(context.Background(), model.IPv6); {
	case lacking(err):
		slog.Warn("IPv6 is not served: this kernel has no nftables for it", "error", err)
		o.Families = []model.Family{model.IPv4}
	case err != nil:
		return nil, fmt.Errorf("nftables for IPv6: %w", err)
	}
	d, err := Open(o)
	if err != nil {
		return nil, err
	}
	return dataplane.New(NewCompiler(o), d), nil
}

// lacking reports whether a probe failed because the kernel does not have what
// we need: then there are no rules of ours either. Any other error may be gone
// the next time, or is for somebody to decide, such as a foreign table of our
// name: it does not tell that a family cannot be served.
func lacking(err error) bool {
	for _, missing := range []error{dataplane.ErrAbsent, errAltered, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.ENOENT} {
		if errors.Is(err, missing) {
			return true
		}
	}
	return false
}
