// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"log/slog"
	"net"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/linux/conntrack"
)

// flowTable deletes stale flows from conntrack. It opens the table for the first of them and keeps it: to
// close one holds up the next transaction of nf_tables (conntrack.Reader).
type flowTable struct{ table *conntrack.Table }

// delete deletes stale flows, except those to targets in keep. A failure does not fail the
// commit: such flows end when their client pauses.
func (t *flowTable) delete(ctx context.Context, log *slog.Logger, fronts []flows.Match, keep func(frontend netip.AddrPort) flows.Set) {
	if len(fronts) == 0 {
		return
	}
	var x flows.Index
	own := ownAddresses()
	for _, m := range fronts {
		m.Own, m.Keep = own, keep(m.Frontend)
		x.Add(m)
	}
	err := t.open()
	if err == nil {
		_, err = t.table.Delete(ctx, x.Matches(), x.Stale)
	}
	if err != nil {
		log.Warn("deleting stale UDP conntrack entries failed", "err", err)
	}
}

func (t *flowTable) open() (err error) {
	if t.table == nil {
		t.table, err = conntrack.Open()
	}
	return err
}

func (t *flowTable) close() error {
	if t.table == nil {
		return nil
	}
	err := t.table.Close()
	t.table = nil
	return err
}

// ownAddresses are those of this host, or none if they cannot be listed.
func ownAddresses() (own []netip.Addr) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own
}
