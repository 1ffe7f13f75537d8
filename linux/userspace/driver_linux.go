// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/conntrack"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Driver applies objects to the host (dataplane.Driver): the address, the rules
// and the relays. It works in the network namespace of the process.
type Driver struct {
	table      table
	sharedAddr bool // the address is not its own: another driver uses it

	mu        sync.Mutex // Observe may run beside Commit
	rules     map[Key]installed
	relays    relays
	dropPorts [2]dropListeners
	// While Observe reads, what is committed beside it; nil else.
	committed map[Key]bool
}

var (
	_ dataplane.Bounded            = (*Driver)(nil)
	_ dataplane.Driver[Key, Value] = (*Driver)(nil)
	_ dataplane.Sentinel           = (*Driver)(nil)
	_ dataplane.Drainer            = (*Driver)(nil)
)

// open returns a driver for a table, which it owns. Close it after use; what is
// in the kernel stays, the relays end.
func open(t table, o relay.Options) *Driver {
	h := openHandover()
	o.Handover = h
	return &Driver{table: t, rules: map[Key]installed{}, relays: newRelays(o, h)}
}

// release gives up the sockets of an earlier process that serve nobody.
func (d *Driver) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.relays.pass.release()
}

// Limits implements dataplane.Driver.
func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{Batch: d.table.Most()} }

// grace is how long connections may go on when the proxy ends.
const grace = 3 * time.Second

// Close implements dataplane.Driver.
func (d *Driver) Close() error {
	err := d.relays.server.Close(grace)
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range d.dropPorts {
		err = errors.Join(err, d.dropPorts[f].close())
		d.dropPorts[f] = nil
	}
	return errors.Join(err, d.table.Close())
}

// Disturbed implements dataplane.Sentinel.
func (d *Driver) Disturbed(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Disturbed()
}

// Full implements dataplane.Bounded.
func (d *Driver) Full() []model.Problem { return d.relays.server.Limited() }

// Commit implements dataplane.Driver: first what rules lead to, then the rules, in
// one transaction for each family, then what no rule leads to any more.
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := make([]error, len(ops))
	stale := staleFlows(ops, d.rules)
	var edits [2][]edit
	for i, op := range ops {
		if d.committed != nil {
			d.committed[op.Key] = true
		}
		if op.Verb != ledger.Delete && !inTable(op.Key) {
			errs[i] = d.create(op)
		}
	}
	for i, op := range ops {
		if inTable(op.Key) {
			errs[i] = d.edit(op, &edits[op.Key.Family])
		}
	}
	d.redirect(&edits)
	failed := [2]error{}
	for f, list := range edits {
		if len(list) > 0 {
			failed[f] = d.table.Write(ctx, model.Family(f), list)
		}
	}
	for i, op := range ops {
		switch err := failed[op.Key.Family]; {
		case errs[i] != nil:
		case err != nil && (inTable(op.Key) || op.Verb == ledger.Delete):
			errs[i] = fmt.Errorf("%w: %w", err, ledger.ErrUnknown)
		case op.Verb == ledger.Delete && !inTable(op.Key):
			errs[i] = d.remove(op.Key)
		}
	}
	d.forget(ctx, stale)
	return errs
}

// create makes or changes what rules lead to.
func (d *Driver) create(op ledger.Op[Key, Value]) (err error) {
	switch k := op.Key; k.Kind {
	case KindAddress:
		return addRelayAddr(k.Family)
	case KindDropPort:
		d.dropPorts[k.Family], err = openDropPort(k.Family)
		return err
	default:
		return d.relays.listen(k.Relay, op.New.Policy)
	}
}

// remove removes what no rule leads to any more.
func (d *Driver) remove(k Key) error {
	switch k.Kind {
	case KindAddress:
		return removeRelayAddr(k.Family)
	case KindDropPort:
		err := d.dropPorts[k.Family].close()
		d.dropPorts[k.Family] = nil
		return err
	}
	d.relays.close(k.Relay)
	return nil
}

// redirect rewrites the rules that lead to where relays were in an earlier run
// and could not be again.
func (d *Driver) redirect(edits *[2][]edit) {
	if !d.relays.changed {
		return
	}
	d.relays.changed = false
	for k, have := range d.rules {
		r := d.relays.open[have.relay]
		if r != nil && have.port != r.Addr().Port() {
			d.put(ledger.Replace, k, Target{Relay: have.relay}, &edits[k.Family])
		}
	}
}

// edit adds an op on rules to the changes of its family.
func (d *Driver) edit(op ledger.Op[Key, Value], edits *[]edit) error {
	k := op.Key
	if to := op.New.To; k.Kind == KindEntry && op.Verb != ledger.Delete && to.Do == ToRelay && d.relays.open[to.Relay] == nil {
		return fmt.Errorf("relay %s does not listen", to.Relay)
	}
	switch {
	case op.Verb == ledger.Delete || k.Kind != KindEntry:
		e := edit{op.Verb, k, slices.Collect(op.New.Rules.All()), d.rules[k]}
		*edits = append(*edits, e)
		d.record(e)
	default:
		d.put(op.Verb, k, op.New.To, edits)
	}
	return nil
}

// put adds or rewrites an entry.
func (d *Driver) put(verb ledger.Verb, k Key, to Target, edits *[]edit) {
	now := installed{}
	if to.Do == ToRelay {
		now.relay, now.port = to.Relay, d.relays.open[to.Relay].Addr().Port()
	}
	rule := entryRule(k, to, now.port)
	now.printed = xtables.List(rule)
	*edits = append(*edits, edit{verb, k, []xtables.Rule{rule}, d.rules[k]})
	d.rules[k] = now
	if d.committed != nil {
		d.committed[k] = true
	}
}

// record keeps what will be installed of a change to anything but entries.
func (d *Driver) record(e edit) {
	switch {
	case e.verb == ledger.Delete:
		delete(d.rules, e.key)
	case e.key.Kind == KindJump:
		d.rules[e.key] = installed{printed: xtables.List(e.rules...)}
	}
}

// forget deletes stale flows, but for those to relays that an entry leads to still.
func (d *Driver) forget(ctx context.Context, stale []flows.Match) {
	deleteFlows(ctx, stale, d.relaysOf)
}

// relaysOf returns the relays that any entry of a frontend leads to: which of
// them depends on the origin of a flow.
func (d *Driver) relaysOf(front netip.AddrPort) flows.Set {
	keep := flows.Set{}
	k := Key{Kind: KindEntry, Family: model.FamilyOf(front.Addr()), Proto: model.UDP, At: front}
	for _, k.Chain = range entryChains {
		have := d.rules[k]
		if r := d.relays.open[have.relay]; r != nil {
			keep[r.Addr()] = struct{}{}
		}
	}
	return keep
}

// draining is how long connections may go on in a mode that was left.
const draining = time.Hour

// Drain implements dataplane.Drainer. The ways into our chains go, and with the
// last connection of a relay its time is over. All else stays until then: without
// the address the kernel would lose their packets, and a mode that comes back
// before finds what it needs.
func (d *Driver) Drain(ctx context.Context) error {
	if err := d.stopNewConnections(ctx); err != nil {
		return fmt.Errorf("start draining: %w", err)
	}
	d.relays.server.Drain(ctx, draining)
	return ctx.Err()
}

// stopNewConnections takes the ways in from the tables, the flows that were led to relays from
// the kernel, and closes relays that no rule leads to any more.
func (d *Driver) stopNewConnections(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ways [2][]edit
	var stale []flows.Match
	for k, have := range d.rules {
		switch {
		case k.Kind == KindJump:
			ways[k.Family] = append(ways[k.Family], edit{verb: ledger.Delete, key: k, have: have})
		case hasFlows(k):
			stale = append(stale, endedFlows(k, have.port))
		}
	}
	for f, list := range ways {
		if len(list) == 0 {
			continue
		}
		if err := d.table.Write(ctx, model.Family(f), list); err != nil {
			return err
		}
		for _, e := range list {
			delete(d.rules, e.key)
		}
	}
	for id := range d.relays.open {
		d.relays.close(id)
	}
	d.forget(ctx, stale)
	return nil
}

// Observe implements dataplane.Driver.
func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	have, err := d.observe(ctx)
	for k, v := range have {
		found(k, v)
	}
	return err
}

func (d *Driver) observe(ctx context.Context) (map[Key]Value, error) {
	d.mu.Lock()
	d.committed = map[Key]bool{}
	d.table.Reading()
	d.mu.Unlock()
	rules, hasAddr, err := d.read(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	meanwhile := d.committed
	d.committed = nil
	if err != nil {
		return nil, err
	}
	objects := map[Key]Value{}
	for _, f := range d.table.Families() {
		if hasAddr[f] {
			objects[Key{Kind: KindAddress, Family: f}] = Value{}
		}
		if d.dropPorts[f] != nil {
			objects[Key{Kind: KindDropPort, Family: f}] = Value{}
		}
	}
	for id, r := range d.relays.open {
		objects[Key{Kind: KindRelay, Family: id.Port.Family, Relay: id}] = Value{Policy: r.policy}
	}
	have := map[Key]installed{}
	for k, r := range rules {
		objects[k], have[k] = d.target(r), r.installed
	}
	for k := range meanwhile { // newer than what was read
		if newer, ok := d.rules[k]; ok {
			have[k] = newer
		} else {
			delete(have, k)
		}
	}
	d.rules = have
	return objects, nil
}

func (d *Driver) read(ctx context.Context) (rules map[Key]found, hasAddr [2]bool, err error) {
	if rules, err = d.table.Read(ctx); err != nil {
		return rules, hasAddr, err
	}
	for _, f := range d.table.Families() {
		if d.sharedAddr {
			break
		}
		if hasAddr[f], err = hasRelayAddr(f); err != nil {
			return rules, hasAddr, err
		}
	}
	return rules, hasAddr, nil
}

// target returns the content of what was read. An entry leads to a relay only
// if one listens there, or will: where it was in an earlier run.
func (d *Driver) target(r found) Value {
	if r.relay != (RelayID{}) && !d.relays.leadsTo(r.relay, r.port) {
		r.To.Do = unknown
	}
	return r.Value
}

// The kernel remembers where it sent the first datagram of a flow. When an entry
// leads elsewhere from now on, that memory is stale; as long as it leads to its
// relay there is none, whatever becomes of endpoints.

// hasFlows reports whether an entry leads flows that the kernel remembers for
// longer than their connection.
func hasFlows(k Key) bool {
	return k.Kind == KindEntry && k.Proto == model.UDP && k.Chain != chainGuard
}

// staleFlows returns what ops on entries make stale, in the words of before them. What
// is to be kept is known only when relays listen.
func staleFlows(ops []ledger.Op[Key, Value], rules map[Key]installed) (fronts []flows.Match) {
	for _, op := range ops {
		switch {
		case !hasFlows(op.Key):
		case op.Verb == ledger.Delete:
			fronts = append(fronts, endedFlows(op.Key, rules[op.Key].port))
		default:
			fronts = append(fronts, flows.Match{Proto: model.UDP, Frontend: op.Key.At, Reach: flows.Everything})
		}
	}
	return fronts
}

// endedFlows returns the flows that an entry leads to where it leads now, to a
// relay's port, a reject or a drop. Others of its frontend may be another mode's,
// which serves already.
func endedFlows(k Key, port uint16) flows.Match {
	f := k.Family
	return flows.Match{
		Proto: model.UDP, Frontend: k.At,
		Gone: flows.SetOf(relayAddrPort(f, port), relayAddrPort(f, rejectPort), relayAddrPort(f, dropPort)),
	}
}

// deleteFlows deletes stale flows from conntrack, but for those to what a frontend
// keeps. It is no part of the commit: what stays ends with its client's silence.
func deleteFlows(ctx context.Context, fronts []flows.Match, keep func(frontend netip.AddrPort) flows.Set) {
	if len(fronts) == 0 {
		return
	}
	var x flows.Index
	own := ownAddresses()
	for _, m := range fronts {
		m.Own, m.Keep = own, keep(m.Frontend)
		x.Add(m)
	}
	table, err := conntrack.Open()
	if err == nil {
		defer table.Close()
		_, err = table.Delete(ctx, x.Matches())
	}
	if err != nil {
		slog.Warn("deleting stale UDP conntrack entries failed", "err", err)
	}
}

// ownAddresses are those of this host, or none where they cannot be told.
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
