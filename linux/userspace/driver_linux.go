package userspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Driver applies objects to the host (dataplane.Driver): the address, the rules
// and the relays. It works in the network namespace of the process.
type Driver struct {
	table  table
	server *relay.Server
	lodger bool // the address is not its own: another driver uses it

	mu     sync.Mutex // Observe may run beside Commit
	rules  map[Key]installed
	relays map[RelayID]*listener
	ports  map[RelayID]uint16 // of an earlier run, from its rules
	moved  bool               // some relay is not where rules lead
	sinks  [2]sink
	// While Observe reads, what is committed beside it; nil else.
	meanwhile map[Key]bool
}

// listener is a relay that listens.
type listener struct {
	*relay.Relay
	policy *relay.Policy
}

var (
	_ dataplane.Filling            = (*Driver)(nil)
	_ dataplane.Driver[Key, Value] = (*Driver)(nil)
	_ dataplane.Sentinel           = (*Driver)(nil)
)

// open returns a driver for a table, which it owns. Close it after use; what is
// in the kernel stays, the relays end.
func open(t table, o relay.Options) *Driver {
	return &Driver{
		table: t, server: relay.NewServer(o),
		rules: map[Key]installed{}, relays: map[RelayID]*listener{}, ports: map[RelayID]uint16{},
	}
}

// Limits implements dataplane.Driver.
func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{Batch: d.table.Most()} }

// grace is how long connections may go on when the proxy ends.
const grace = 3 * time.Second

// Close implements dataplane.Driver.
func (d *Driver) Close() error {
	err := d.server.Close(grace)
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range d.sinks {
		err = errors.Join(err, d.sinks[f].close())
		d.sinks[f] = nil
	}
	return errors.Join(err, d.table.Close())
}

// Disturbed implements dataplane.Sentinel.
func (d *Driver) Disturbed(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Disturbed()
}

// Full implements dataplane.Filling.
func (d *Driver) Full() []model.Problem { return d.server.Limited() }

// Commit implements dataplane.Driver: first what rules lead to, then the rules, in
// one transaction for each family, then what no rule leads to any more.
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := make([]error, len(ops))
	stale := d.stale(ops)
	var edits [2][]edit
	for i, op := range ops {
		if d.meanwhile != nil {
			d.meanwhile[op.Key] = true
		}
		if op.Verb != ledger.Delete && !inTable(op.Key) {
			errs[i] = d.provide(op)
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
			errs[i] = d.withdraw(op.Key)
		}
	}
	d.forget(ctx, stale)
	return errs
}

// provide makes or changes what rules lead to.
func (d *Driver) provide(op ledger.Op[Key, Value]) (err error) {
	switch k := op.Key; k.Kind {
	case KindShelter:
		return addShelter(k.Family)
	case KindSink:
		d.sinks[k.Family], err = openSink(k.Family)
		return err
	default:
		return d.listen(k.Relay, op.New.Policy)
	}
}

// listen opens a relay, or changes it. After a restart it listens where the
// rules of the earlier run lead, unless that port has been taken.
func (d *Driver) listen(id RelayID, p *relay.Policy) error {
	if r := d.relays[id]; r != nil {
		r.Update(*p)
		r.policy = p
		return nil
	}
	before := d.ports[id]
	r, err := d.server.Listen(id.Port.Proto, shelterPort(id.Port.Family, before), *p)
	if err != nil && before != 0 {
		r, err = d.server.Listen(id.Port.Proto, shelterPort(id.Port.Family, 0), *p)
	}
	if err != nil {
		return err
	}
	d.relays[id] = &listener{r, p}
	delete(d.ports, id)
	d.moved = d.moved || before != 0 && r.Addr().Port() != before
	return nil
}

// redirect rewrites the rules that lead to where relays were in an earlier run
// and could not be again.
func (d *Driver) redirect(edits *[2][]edit) {
	if !d.moved {
		return
	}
	d.moved = false
	for k, have := range d.rules {
		r := d.relays[have.relay]
		if r != nil && have.port != r.Addr().Port() {
			d.put(ledger.Replace, k, Target{Relay: have.relay}, &edits[k.Family])
		}
	}
}

// edit adds an op on rules to the changes of its family.
func (d *Driver) edit(op ledger.Op[Key, Value], edits *[]edit) error {
	k := op.Key
	if to := op.New.To; k.Kind == KindEntry && op.Verb != ledger.Delete && to.Do == ToRelay && d.relays[to.Relay] == nil {
		return fmt.Errorf("relay %s does not listen", to.Relay)
	}
	switch {
	case op.Verb == ledger.Delete || k.Kind != KindEntry:
		e := edit{op.Verb, k, slices.Collect(op.New.Rules.All()), d.rules[k]}
		*edits = append(*edits, e)
		d.book(e)
	default:
		d.put(op.Verb, k, op.New.To, edits)
	}
	return nil
}

// put adds or rewrites an entry.
func (d *Driver) put(verb ledger.Verb, k Key, to Target, edits *[]edit) {
	now := installed{}
	if to.Do == ToRelay {
		now.relay, now.port = to.Relay, d.relays[to.Relay].Addr().Port()
	}
	rule := entryRule(k, to, now.port)
	now.printed = xtables.List(rule)
	*edits = append(*edits, edit{verb, k, []xtables.Rule{rule}, d.rules[k]})
	d.rules[k] = now
	if d.meanwhile != nil {
		d.meanwhile[k] = true
	}
}

// book keeps what will be installed of a change to anything but entries.
func (d *Driver) book(e edit) {
	switch {
	case e.verb == ledger.Delete:
		delete(d.rules, e.key)
	case e.key.Kind == KindJump:
		d.rules[e.key] = installed{printed: xtables.List(e.rules...)}
	}
}
