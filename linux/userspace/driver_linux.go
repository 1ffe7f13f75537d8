// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Driver applies objects to the host (dataplane.Driver): the address, the rules
// and the relays. It works in the network namespace of the process.
type Driver struct {
	dataplane.SimpleDriver[Key, Value]
	table      table
	log        *slog.Logger
	sharedAddr bool // another driver uses the relay address, too

	mu        sync.Mutex // Observe may run concurrently with Commit
	rules     map[Key]installed
	users     map[RelayID]int // how many rules lead to a relay
	relays    relays
	flows     *flowTable
	dropPorts [2]dropListeners
	// Commits during Observe; nil otherwise.
	committed map[Key]bool
}

// open returns a driver that owns a table. Close it after use: objects in the kernel
// stay, relays end.
func open(t table, o relay.Options) *Driver {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Driver{table: t, log: o.Log, rules: map[Key]installed{}, users: map[RelayID]int{}, relays: newRelays(o)}
	d.flows = &flowTable{log: o.Log, open: openConntrack, leads: d.leads}
	return d
}

// release closes the sockets of an earlier process that no relay uses.
func (d *Driver) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if pass := d.relays.pass; pass != nil {
		pass.Release()
	}
}

var _ dataplane.Driver[Key, Value] = (*Driver)(nil)

func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{Batch: d.table.MaxEdits()} }

// closeLimit is how long connections may continue when the proxy ends.
const closeLimit = 3 * time.Second

func (d *Driver) Close() error {
	err := errors.Join(d.relays.server.Close(closeLimit), d.flows.close())
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range d.dropPorts {
		err = errors.Join(err, d.dropPorts[f].close())
		d.dropPorts[f] = nil
	}
	return errors.Join(err, d.table.Close())
}

func (d *Driver) Disturbed(ctx context.Context) (bool, error) { return d.table.Disturbed(ctx) }

func (d *Driver) Prune(ctx context.Context) error { return d.table.Prune(ctx) }

func (d *Driver) Others(ctx context.Context) ([]string, error) { return d.table.Others(ctx) }

func (d *Driver) Problems() []model.Problem { return d.relays.server.Limited() }

// Commit creates targets of rules, then writes the rules in one transaction per family,
// then removes targets without rules.
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := make([]error, len(ops))
	stale := staleFlows(ops, d.rules)
	d.inherit(ops)
	var edits [2][]edit
	for i, op := range ops {
		if d.committed != nil {
			d.committed[op.Key] = true
		}
		if op.Verb != ledger.Delete && !InTable(op.Key) {
			errs[i] = d.create(ctx, op)
		}
	}
	for i, op := range ops {
		if InTable(op.Key) {
			errs[i] = d.edit(op, &edits[op.Key.Family])
		}
	}
	d.redirect(&edits)
	failed := [2]error{}
	for f, list := range edits {
		if len(list) > 0 {
			failed[f] = d.table.Edit(ctx, model.Family(f), list)
		}
	}
	for i, op := range ops {
		switch err := failed[op.Key.Family]; {
		case errs[i] != nil:
		case err != nil && (InTable(op.Key) || op.Verb == ledger.Delete || op.Key.Kind == kindRelay): // redirect may have failed
			errs[i] = fmt.Errorf("%w: %w", err, ledger.ErrUnknown)
		case op.Verb == ledger.Delete && !InTable(op.Key):
			errs[i] = d.remove(op.Key)
		}
	}
	d.flows.enqueue(ctx, stale)
	return errs
}

// inherit gives relays that are about to listen the ports of relays of an earlier run that had
// other names: a relay takes the port to which its entries' rules lead, if these ops change all
// rules that lead there, and all that lead to a relay of its own name. All ops of a Service
// port are in one Commit.
func (d *Driver) inherit(ops []ledger.Op[Key, Value]) {
	if len(d.relays.ports) == 0 {
		return
	}
	type move struct {
		from, to RelayID
		port     uint16
	}
	var moves []move
	leave := map[RelayID]int{} // how many rules to a relay of the earlier run change
	for _, op := range ops {
		from, to := d.rules[op.Key].relay, op.New.To
		port := d.relays.ports[from]
		if port == 0 || op.Verb == ledger.Replace && to == (Target{Do: toRelay, Relay: from}) {
			continue
		}
		leave[from]++
		if op.Verb == ledger.Replace && to.Do == toRelay {
			moves = append(moves, move{from, to.Relay, port})
		}
	}
	given, has := map[RelayID]bool{}, map[RelayID]bool{}
	left := func(id RelayID) bool { return leave[id] == d.users[id] }
	for _, m := range moves {
		if given[m.from] || has[m.to] || d.relays.open[m.to] != nil || !left(m.from) || !left(m.to) {
			continue
		}
		given[m.from], has[m.to] = true, true
		d.relays.ports[m.to] = m.port
		if !has[m.from] {
			delete(d.relays.ports, m.from)
		}
	}
}

// create creates or changes a target of rules.
func (d *Driver) create(ctx context.Context, op ledger.Op[Key, Value]) (err error) {
	switch k := op.Key; k.Kind {
	case kindAddress:
		return addRelayAddr(ctx, k.Family)
	case kindDropPort:
		d.dropPorts[k.Family], err = openDropPort(ctx, k.Family)
		return err
	default:
		return d.relays.listen(k.Relay, op.New.Policy)
	}
}

// remove removes a target that no rule uses any more.
func (d *Driver) remove(k Key) error {
	switch k.Kind {
	case kindAddress:
		return removeRelayAddr(k.Family)
	case kindDropPort:
		err := d.dropPorts[k.Family].close()
		d.dropPorts[k.Family] = nil
		return err
	}
	if n := d.users[k.Relay]; n > 0 { // the change of one has failed: see UsesRelay
		return fmt.Errorf("relay %s kept: %d rules still lead to it", k.Relay, n)
	}
	d.relays.close(k.Relay)
	return nil
}

// redirect rewrites rules that lead to a port of an earlier run which the relay could not
// bind again.
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

// edit adds an op on rules to the edits of its family.
func (d *Driver) edit(op ledger.Op[Key, Value], edits *[]edit) error {
	k := op.Key
	if to := op.New.To; k.Kind == kindEntry && op.Verb != ledger.Delete && to.Do == toRelay && d.relays.open[to.Relay] == nil {
		return fmt.Errorf("relay %s does not listen", to.Relay)
	}
	switch {
	case op.Verb == ledger.Delete || k.Kind != kindEntry:
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
	if to.Do == toRelay {
		now.relay, now.port = to.Relay, d.relays.open[to.Relay].Addr().Port()
	}
	rule := entryRule(k, to, now.port)
	now.printed = xtables.List(rule)
	*edits = append(*edits, edit{verb, k, []xtables.Rule{rule}, d.rules[k]})
	d.setRule(k, now)
	if d.committed != nil {
		d.committed[k] = true
	}
}

// record records the effect of an edit of anything but an entry.
func (d *Driver) record(e edit) {
	switch {
	case e.verb == ledger.Delete:
		d.setRule(e.key, installed{})
		delete(d.rules, e.key)
	case e.key.Kind == kindJump:
		d.setRule(e.key, installed{printed: xtables.List(e.rules...)})
	}
}

// setRule records a rule as installed.
func (d *Driver) setRule(k Key, now installed) {
	d.use(d.rules[k].relay, -1)
	d.use(now.relay, 1)
	d.rules[k] = now
}

// use counts rules that lead to a relay.
func (d *Driver) use(id RelayID, n int) {
	if id == (RelayID{}) {
		return
	}
	if d.users[id] += n; d.users[id] == 0 {
		delete(d.users, id)
	}
}

// leads reports whether a flow leads to a relay of its frontend, for any origin.
func (d *Driver) leads(f flows.Flow) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	family, known := model.FamilyOf(f.Dst.Addr()), false
	for _, at := range [...]netip.AddrPort{f.Dst, netip.AddrPortFrom(family.Unspecified(), f.Dst.Port())} {
		k := Key{Kind: kindEntry, Family: family, Proto: f.Proto, At: at}
		for _, k.Chain = range entryChains {
			have, is := d.rules[k]
			if r := d.relays.open[have.relay]; r != nil && r.Addr() == f.From {
				return true
			}
			known = known || is
		}
		if known { // entries by address come before node ports
			return false
		}
	}
	return false
}

// drainLimit is how long connections may continue after a switch to another mode.
const drainLimit = time.Hour

// Drain deletes the jumps to owned chains, closes the listeners and waits until the relays
// have no connections. All other objects stay: without the relay address the kernel would
// drop packets of connections, and this mode can resume if the node switches back.
func (d *Driver) Drain(ctx context.Context) error {
	stale, err := d.stopNewConnections(ctx)
	if err != nil {
		return fmt.Errorf("start draining: %w", err)
	}
	d.flows.delete(ctx, stale)
	d.relays.server.Drain(ctx, drainLimit)
	return ctx.Err()
}

// stopNewConnections deletes the jumps and closes the listeners. It returns the UDP flows of
// all entries.
func (d *Driver) stopNewConnections(ctx context.Context) (stale []flows.Match, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var deletions [2][]edit
	for k, have := range d.rules {
		switch {
		case k.Kind == kindJump:
			deletions[k.Family] = append(deletions[k.Family], edit{verb: ledger.Delete, key: k, have: have})
		case hasFlows(k):
			stale = append(stale, endedFlows(k, have.port, ""))
		}
	}
	for f, list := range deletions {
		if len(list) == 0 {
			continue
		}
		if err := d.table.Edit(ctx, model.Family(f), list); err != nil {
			return nil, err
		}
		for _, e := range list {
			delete(d.rules, e.key)
		}
	}
	for id := range d.relays.open {
		d.relays.close(id)
	}
	return stale, nil
}

func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	d.mu.Lock()
	d.committed = map[Key]bool{}
	d.mu.Unlock()
	rules, hasAddr, err := d.read(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	meanwhile := d.committed
	d.committed = nil
	if err != nil {
		return err
	}
	for _, f := range d.table.Served() {
		if hasAddr[f] {
			found(Key{Kind: kindAddress, Family: f}, Value{})
		}
		if d.dropPorts[f] != nil {
			found(Key{Kind: kindDropPort, Family: f}, Value{})
		}
	}
	for id, r := range d.relays.open {
		if r.Listening() {
			found(Key{Kind: kindRelay, Family: id.Port().Family, Relay: id}, Value{Policy: r.policy})
		}
	}
	have := map[Key]installed{}
	for k, r := range rules {
		found(k, d.target(r))
		have[k] = r.installed
	}
	for k := range meanwhile { // newer than what was read
		if newer, ok := d.rules[k]; ok {
			have[k] = newer
		} else {
			delete(have, k)
		}
	}
	d.rules = have
	clear(d.users)
	for _, r := range have {
		d.use(r.relay, 1)
	}
	return nil
}

func (d *Driver) read(ctx context.Context) (rules map[Key]found, hasAddr [2]bool, err error) {
	if rules, err = d.table.Read(ctx); err != nil {
		return rules, hasAddr, err
	}
	for _, f := range d.table.Served() {
		if d.sharedAddr {
			break
		}
		if hasAddr[f], err = hasRelayAddr(f); err != nil {
			return rules, hasAddr, err
		}
	}
	return rules, hasAddr, nil
}

// target returns the content of an object as read. An entry's target is a relay only if the
// relay listens on the port, or did in an earlier run and will again.
func (d *Driver) target(r found) Value {
	if r.relay != (RelayID{}) && !d.relays.leadsTo(r.relay, r.port) {
		r.To.Do = unknown
	}
	return r.Value
}
