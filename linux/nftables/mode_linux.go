// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/nft"
)

func onLinux(m dataplane.Mode) dataplane.Mode {
	m.Probe, m.Open, m.KubeProxy = probe, openBackend, kubeProxy
	return m
}

// probe tries IPv4 only. If the kernel has no nftables for IPv6, openBackend serves IPv4, and
// IPv6 ports are Gaps.
func probe(ctx context.Context) error { return host.Undecided(Probe(ctx, model.IPv4)) }

func openBackend(ctx context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
	o := options(c)
	if err := nft.Check(ctx, table, model.IPv4); errors.Is(err, dataplane.ErrAbsent) {
		return nil, nft.Advise(err)
	}
	if err := nft.Sweep(ctx); err != nil {
		log.Warn("deleting temporary nftables tables of killed processes failed", "err", err)
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

// lacking reports whether a probe failed because the kernel lacks a feature: then it has no
// owned rules either. Other errors may be transient or need an administrator, such as a
// foreign table: they do not mean that a family cannot be served.
func lacking(err error) bool {
	for _, missing := range []error{dataplane.ErrAbsent, nft.ErrAltered, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.ENOENT} {
		if errors.Is(err, missing) {
			return true
		}
	}
	return false
}

// kubeProxyTable has the name and the comment's prefix of the tables of kube-proxy's nftables
// mode (pkg/proxy/nftables/proxier.go of Kubernetes 1.37).
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

// counted is a backend with counters of connections.
type counted struct {
	dataplane.Backend
	options Options
	counts  *nft.Counts
}

func withCounts(b dataplane.Backend, o Options) (dataplane.Backend, error) {
	c, err := nft.OpenCounts(table)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return counted{b, o, c}, nil
}

var _ dataplane.Backend = counted{}

func (c counted) Close() error { return errors.Join(c.counts.Close(), c.Backend.Close()) }

// Connections: the counters of frontends count first packets of connections, each in one
// element.
func (c counted) Connections(ctx context.Context, endpoints bool, found func(dataplane.Connections)) (counted bool, err error) {
	sets := Options{}.counted()
	if endpoints {
		sets = slotSets()
	}
	if endpoints && !c.options.CountEndpoints {
		return false, nil
	}
	for _, f := range c.options.families() {
		pass := func(k nft.Key, v nft.Value) { found(connections(f, k, v)) }
		if err := c.counts.Read(ctx, f, pass, sets...); err != nil {
			return true, err
		}
	}
	return true, nil
}

func connections(f model.Family, k nft.Key, v nft.Value) dataplane.Connections {
	c := dataplane.Connections{Proto: k.Proto, At: netip.AddrPortFrom(f.Unspecified(), k.Port), New: v.Body.Counter.Packets}
	if !slices.Contains([]*nft.Set{setNodePorts, setNodePortsPod, setNodePortsHost, setNodeSlots}, k.Set) {
		c.At = k.AddrPort()
	}
	if k.Set.Data == nft.DataEndpoint {
		c.Endpoint = v.Endpoint(f)
	}
	return c
}
