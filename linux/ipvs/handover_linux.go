// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
)

var _ dataplane.Drainer = (*Driver)(nil)

// Drain implements dataplane.Drainer. The first packets of connections are left
// to others from now on; virtual servers go as soon as they have no connection,
// after drainLimit in any case. All else stays until then: what belongs to a
// connection is still marked, delivered here and forwarded.
func (d *Driver) Drain(ctx context.Context) error {
	var own []netip.Addr
	err := d.tables.ns.Do(func() (err error) { own, err = nodeAddresses(); return err })
	if err := errors.Join(err, d.kernel.preferNodeSource(own), d.skipNewConnections(ctx)); err != nil {
		return fmt.Errorf("ipvs: start draining: %w", err)
	}
	late := time.NewTimer(drainLimit)
	defer late.Stop()
	tick := time.NewTicker(drainCheck)
	defer tick.Stop()
	for failing := false; ; {
		busy, err := d.deleteIdle(ctx)
		held, err2 := d.kernel.ownConnections()
		busy += held
		err = errors.Join(err, err2)
		if err == nil && busy == 0 {
			return nil
		}
		if err != nil && !failing && ctx.Err() == nil {
			slog.Warn("counting IPVS connections failed", "mode", Name, "err", err, "retry", drainCheck)
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-late.C:
			slog.Warn("drain timeout; closing connections", "mode", Name, "busy", busy, "after", drainLimit)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// skipNewConnections makes the jumps to the chains that classify skip new connections.
// The compiler has no such jump, so the driver that adopts it makes it a common one,
// when all that IPVS serves is there.
func (d *Driver) skipNewConnections(ctx context.Context) error {
	var ops []ledger.Op[Key, Value]
	for _, f := range d.options.families() {
		err := d.tables.observe(ctx, f, func(k Key, v Value) {
			if k.Kind == KindJump && k.Chain.classifies() && !v.OldOnly {
				ops = append(ops, ledger.Op[Key, Value]{Verb: ledger.Replace, Key: k, Old: v, New: Value{OldOnly: true}})
			}
		})
		if err != nil {
			return err
		}
	}
	errs := make([]error, len(ops))
	d.tables.apply(ctx, ops, errs)
	return errors.Join(errs...)
}

// deleteIdle deletes our virtual servers that have no connections of TCP and takes the
// destinations of all others out of the choice. It returns how many there were:
// those just deleted count, since the next packet of a UDP flow must still get
// to IPVS, which then forgets the flow (expire_nodest_conn).
func (d *Driver) deleteIdle(ctx context.Context) (busy int, err error) {
	all, err := d.kernel.ipvs.GetServices()
	if err != nil {
		return 0, err
	}
	o := observation{Driver: d}
	for _, s := range all {
		if _, ours := o.serverKey(s); !ours {
			continue
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		busy++
		uses, err := d.drainServer(s)
		if err != nil {
			return 0, err
		}
		if uses {
			continue
		}
		if err := ignore(d.kernel.ipvs.DelService(s), unix.ESRCH, unix.ENOENT); err != nil {
			return 0, err
		}
	}
	return busy, nil
}

// drainServer reports whether a virtual server has connections that must be waited for,
// and if so sees to it that it gets no more.
func (d *Driver) drainServer(s *ipvs.Service) (bool, error) {
	if s.FWMark == 0 && s.Protocol != unix.IPPROTO_TCP {
		return false, nil
	}
	have, err := d.kernel.ipvs.GetDestinations(s)
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(have, func(e *ipvs.Destination) bool { return e.ActiveConnections+e.InactiveConnections > 0 }) {
		return false, nil
	}
	for _, e := range have {
		if e.Weight == 0 {
			continue
		}
		e.Weight = 0
		if err := ignore(d.kernel.ipvs.UpdateDestination(s, e), unix.ENOENT, unix.ESRCH); err != nil {
			return true, err
		}
	}
	return true, nil
}
