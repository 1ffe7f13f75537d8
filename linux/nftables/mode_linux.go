// SPDX-License-Identifier: Apache-2.0

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
	"github.com/tandem-proxy/tandem/linux/nft"
)

// probe tries IPv4, which every node needs. Where the kernel has no nftables for
// IPv6, openBackend serves IPv4 alone, and ports of IPv6 are Gaps.
func probe(ctx context.Context) error { return host.Undecided(Probe(ctx, model.IPv4)) }

func openBackend(ctx context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
	o := options(c)
	if err := nft.Check(ctx, table, model.IPv4); errors.Is(err, dataplane.ErrAbsent) {
		return nil, nft.Advise(err)
	}
	err := host.CheckIPv6()
	if err == nil {
		err = Probe(ctx, model.IPv6)
	}
	switch {
	case lacking(err):
		log.Warn("IPv6 not served", "mode", config.NFTables, "err", err)
		o.Families = []model.Family{model.IPv4}
	case err != nil:
		return nil, fmt.Errorf("nftables for IPv6: %w", err)
	}
	liberal := host.RelyOnLiberal(o.Liberal)
	o.Liberal = liberal != nil
	d, err := Open(o)
	if err != nil {
		return nil, errors.Join(err, liberal.Close())
	}
	d.liberal = liberal
	b := newBackend(NewCompiler(o), d)
	if o.Count {
		if b, err = withCounts(b, o); err != nil {
			return nil, err
		}
	}
	if c.Accelerate == config.Flowtable {
		return withOffload(b, log)
	}
	return withoutOffload(b, log)
}

// lacking reports whether a probe failed because the kernel does not have what
// we need: then there are no owned rules either. Any other error may be transient
// or need an administrator, such as a foreign table of our
// name: it does not mean that a family cannot be served.
func lacking(err error) bool {
	for _, missing := range []error{dataplane.ErrAbsent, nft.ErrAltered, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.ENOENT} {
		if errors.Is(err, missing) {
			return true
		}
	}
	return false
}

// What kube-proxy's nftables mode calls its tables, and how their comments
// begin: pkg/proxy/nftables/proxier.go of Kubernetes 1.36.
var kubeProxyTable = nft.NewTable("kube-proxy", "rules for kube-proxy", "")

// kubeProxy finds the tables of kube-proxy. Tables of that name without its
// comment are not touched.
func kubeProxy(ctx context.Context) (left dataplane.Leftovers, err error) {
	d, err := nft.Open(kubeProxyTable)
	if err != nil {
		return left, nft.Advise(err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	for _, f := range model.Families() {
		has, err := d.Has(ctx, f)
		switch {
		case errors.Is(err, nft.ErrForeign):
		case err != nil:
			return left, nft.Advise(err)
		case has:
			left.Found = append(left.Found, "nftables table "+nft.FamilyName(f)+" "+kubeProxyTable.Name)
		}
	}
	left.Remove = removeKubeProxy
	return left, nil
}

func removeKubeProxy(ctx context.Context) error {
	var failed error
	for _, f := range model.Families() {
		d, err := nft.Open(kubeProxyTable, f)
		if err != nil {
			failed = errors.Join(failed, nft.Advise(err))
			continue
		}
		if err := d.Remove(ctx); !errors.Is(err, nft.ErrForeign) {
			failed = errors.Join(failed, err)
		}
		failed = errors.Join(failed, d.Close())
	}
	return failed
}
