package userspace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/iptables"
)

// Driver applies objects to the host (dataplane.Driver): the address, the rules
// and the relays. It works in the network namespace of the process.
type Driver struct {
	table  *iptables.NATTable
	server *relay.Server

	mu     sync.Mutex // Observe may run beside Commit
	rules  map[Key]installed
	relays map[RelayID]*open
	ports  map[RelayID]uint16 // of an earlier run, from its rules
	sinks  [2]sink
	// While Observe reads, what is committed beside it; nil else.
	meanwhile map[Key]bool
}

// installed is a rule as it stands in its chain.
type installed struct {
	text  string
	relay RelayID // that it leads to; the zero value for none
}

// open is a relay that listens.
type open struct {
	*relay.Relay
	policy *relay.Policy
}

var (
	_ dataplane.Driver[Key, Value] = (*Driver)(nil)
	_ dataplane.Sentinel           = (*Driver)(nil)
)

// Open returns a driver for a table, which it owns. Close it after use; what is
// in the kernel stays, the relays end.
func Open(table *iptables.NATTable, o relay.Options) *Driver {
	return &Driver{
		table: table, server: relay.NewServer(o),
		rules: map[Key]installed{}, relays: map[RelayID]*open{}, ports: map[RelayID]uint16{},
	}
}

// Limits implements dataplane.Driver.
func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{} }

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

// Commit implements dataplane.Driver: first what rules lead to, then the rules, in
// one transaction for each family, then what no rule leads to any more.
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := make([]error, len(ops))
	stale := d.stale(ops)
	batches := [2]*batch{newBatch(), newBatch()}
	for i, op := range ops {
		if d.meanwhile != nil {
			d.meanwhile[op.Key] = true
		}
		if op.Verb != ledger.Delete && !inTable(op.Key) {
			errs[i] = d.provide(op, batches[op.Key.Family])
		}
	}
	for i, op := range ops {
		if inTable(op.Key) {
			errs[i] = d.encode(op, batches[op.Key.Family])
		}
	}
	failed := [2]error{}
	for f, b := range batches {
		if !b.empty() {
			failed[f] = d.table.Restore(ctx, model.Family(f), b.text())
		}
	}
	for i, op := range ops {
		switch err := failed[op.Key.Family]; {
		case errs[i] != nil:
		case err != nil && (inTable(op.Key) || op.Verb == ledger.Delete):
			errs[i] = fmt.Errorf("%w: %w", err, ledger.ErrUnknown)
		case op.Verb == ledger.Delete && !inTable(op.Key):
			errs[i] = d.withdraw(ctx, op.Key)
		}
	}
	d.forget(ctx, stale)
	return errs
}

// inTable reports whether an object is rules.
func inTable(k Key) bool { return k.Kind != KindShelter && k.Kind != KindSink && k.Kind != KindRelay }

// provide makes or changes what rules lead to.
func (d *Driver) provide(op ledger.Op[Key, Value], b *batch) (err error) {
	switch k := op.Key; k.Kind {
	case KindShelter:
		return addShelter(k.Family)
	case KindSink:
		d.sinks[k.Family], err = openSink(k.Family)
		return err
	default:
		return d.listen(k.Relay, op.New.Policy, b)
	}
}

// listen opens a relay, or changes it. After a restart it listens where the
// rules of the earlier run lead; if that port has been taken, those rules are
// rewritten.
func (d *Driver) listen(id RelayID, p *relay.Policy, b *batch) error {
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
	d.relays[id] = &open{r, p}
	delete(d.ports, id)
	if before != 0 && r.Addr().Port() != before {
		d.redirect(id, b)
	}
	return nil
}

// redirect rewrites all rules that lead to a relay.
func (d *Driver) redirect(id RelayID, b *batch) {
	for k, have := range d.rules {
		if have.relay == id {
			b.remove(k.Chain, have.text)
			d.enter(k, Target{Relay: id}, b)
		}
	}
}

// encode adds an op on rules to the transaction of its family.
func (d *Driver) encode(op ledger.Op[Key, Value], b *batch) error {
	k := op.Key
	if to := op.New.To; k.Kind == KindEntry && op.Verb != ledger.Delete && to.Do == ToRelay && d.relays[to.Relay] == nil {
		return fmt.Errorf("relay %s does not listen", to.Relay)
	}
	if k.Kind == KindChain {
		if op.Verb == ledger.Delete {
			b.drop(k.Chain)
		} else {
			b.chain(k.Chain, op.New.Rules)
		}
		return nil
	}
	if op.Verb != ledger.Create {
		b.remove(k.Chain, d.rules[k].text)
		delete(d.rules, k)
	}
	switch {
	case op.Verb == ledger.Delete:
	case k.Kind == KindJump:
		text := op.New.Rules[0].String()
		b.jump(k, text)
		d.rules[k] = installed{text: text}
	default:
		d.enter(k, op.New.To, b)
	}
	return nil
}

// enter adds an entry.
func (d *Driver) enter(k Key, to Target, b *batch) {
	have := installed{}
	var port uint16
	if to.Do == ToRelay {
		have.relay, port = to.Relay, d.relays[to.Relay].Addr().Port()
	}
	have.text = entryRule(k, to, port).String()
	b.entry(k, have.text)
	d.rules[k] = have
}
