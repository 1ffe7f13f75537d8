package hns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Settings are what a driver needs besides HNS itself.
type Settings struct {
	Network   string     // the network's name; empty to find it
	Root      string     // the name of the endpoint that stands for the node; empty for none
	SourceVIP netip.Addr // of an overlay; the zero value to find it
	Journal   string     // the file that remembers what is ours; empty for none
	Log       *slog.Logger

	// Folder makes the journal's folder, and deletes those of its files that
	// somebody else has made: who writes the journal decides what is deleted. Nil
	// makes a plain one.
	Folder func(dir string, files ...string) error
	// MAC returns the hardware address of the interface that has an address. Only
	// overlay networks need it.
	MAC func(netip.Addr) (string, error)
	// Instance tells one run of the service from another, without asking it. Nil
	// is not to look.
	Instance func() (uint32, error)
	// SourceVIPFile is where flannel's start scripts leave the source VIP; empty
	// for nowhere.
	SourceVIPFile string
}

// Driver applies objects to HNS (dataplane.Driver and dataplane.Sentinel).
type Driver struct {
	calls    *calls
	settings Settings
	journal  *journal
	table    *table
	doubt    atomic.Bool   // something is not as it was left: read back
	instance atomic.Uint32 // of HNS, when it was last looked at

	// Owned by Commit:
	modify   bool         // load balancers can be changed in place
	borrowed map[Key]bool // wanted endpoints that others have made; under table.mu
}

var (
	_ dataplane.Driver[Key, Value]   = (*Driver)(nil)
	_ dataplane.Sentinel             = (*Driver)(nil)
	_ dataplane.Compiler[Key, Value] = (*Compiler)(nil)
)

// NewDriver returns a driver of an HNS of this version. It owns the HNS and
// closes it.
func NewDriver(h HNS, v Version, s Settings) (*Driver, error) {
	if err := v.usable(); err != nil {
		return nil, err
	}
	j, err := openJournal(s.Journal, s.Folder)
	if err != nil {
		return nil, err
	}
	return newDriver(h, v, s, j), nil
}

func newDriver(h HNS, v Version, s Settings, j *journal) *Driver {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	d := &Driver{
		calls:    newCalls(h, s.Log),
		settings: s, journal: j, table: newTable(s.Root),
		modify: v.Features().Modify, borrowed: map[Key]bool{},
	}
	for _, f := range model.Families() {
		d.setNode(f, j.node(f))
	}
	return d
}

// Limits implements dataplane.Driver. HNS has no transactions.
func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{} }

// Disturbed implements dataplane.Sentinel. It asks HNS nothing: it reports that
// its service was restarted, after which load balancers are known to be missing
// (kubernetes#110849), and what Doubt was told.
func (d *Driver) Disturbed(context.Context) (bool, error) {
	if d.settings.Instance != nil {
		// A service that is down, or that cannot be asked for, is no news.
		if now, err := d.settings.Instance(); err == nil && now != 0 && d.instance.Swap(now) != now {
			d.doubt.Store(true)
		}
	}
	return d.doubt.Load(), nil
}

// Doubt asks for HNS to be read back. It may be called from any goroutine.
func (d *Driver) Doubt() { d.doubt.Store(true) }

// Close implements dataplane.Driver. What is programmed stays.
func (d *Driver) Close() error {
	var err error
	if d.calls.hung.Load() == 0 { // else it would wait for the call that hangs
		err = d.calls.hns.Close()
	}
	return errors.Join(err, d.journal.close())
}

// setNode takes this node's own address of a family.
func (d *Driver) setNode(f model.Family, a netip.Addr) {
	d.table.mu.Lock()
	defer d.table.mu.Unlock()
	d.table.facts.node[f] = a
	if f == model.IPv4 {
		d.table.facts.hostMAC = ""
		d.findMAC()
	}
}

// seekMAC looks again for the hardware address of this node, where it was not
// found. When an overlay is made, the node's address moves to another interface,
// and for some seconds no interface has it.
func (d *Driver) seekMAC() {
	d.table.mu.Lock()
	defer d.table.mu.Unlock()
	d.findMAC()
}

// findMAC finds the hardware address of this node, unless it is known. The
// caller holds the table's lock.
func (d *Driver) findMAC() {
	f := &d.table.facts
	a := f.node[model.IPv4]
	if f.hostMAC != "" || !a.IsValid() || d.settings.MAC == nil {
		return
	}
	mac, err := d.settings.MAC(a)
	if err != nil {
		d.settings.Log.Warn("no interface has the node's address", "address", a, "error", err)
	}
	f.hostMAC = mac
}

// Observe implements dataplane.Driver: everything of ours.
func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	have, err := d.observe(ctx)
	for k, v := range have {
		found(k, v)
	}
	return err
}

func (d *Driver) observe(ctx context.Context) (map[Key]Value, error) {
	d.doubt.Store(false)
	if d.settings.Instance != nil {
		if now, err := d.settings.Instance(); err == nil {
			d.instance.Store(now)
		}
	}
	before := d.journal.all()
	d.table.begin()
	r, err := d.read(ctx)
	d.table.end(r)
	if err != nil {
		d.doubt.Store(true)
		return nil, fmt.Errorf("HNS: %w", err)
	}
	seen := map[string]bool{}
	for _, lb := range r.balancers {
		seen[lb.ID] = true
	}
	if err := d.journal.prune(before, seen); err != nil {
		d.settings.Log.Error("the journal of load balancers cannot be written", "error", err)
	}
	d.warn()
	return d.objects(), nil
}

// read reads HNS: the network, the endpoints that are not known yet, and all
// load balancers.
func (d *Driver) read(ctx context.Context) (*reading, error) {
	n, err := d.network(ctx)
	if err != nil {
		return nil, err
	}
	r := &reading{network: n}
	if r.endpoints, err = d.endpoints(ctx, n.id); err != nil {
		return nil, err
	}
	if n.overlay {
		d.seekMAC()
		if r.sourceVIP, err = d.settings.sourceVIP(r.endpoints); err != nil {
			return nil, err
		}
	}
	if r.balancers, err = d.listBalancers(ctx); err != nil {
		return nil, err // not a reading of an HNS without load balancers
	}
	return r, nil
}

func (d *Driver) network(ctx context.Context) (network, error) {
	all, err := d.calls.networks(ctx)
	if err != nil {
		return network{}, err
	}
	n, err := FindNetwork(all, d.settings.Network)
	return describe(n), err
}

// endpoints reads the endpoints of a network. Pods come and go meanwhile: what
// vanishes between being listed and being read is not there.
func (d *Driver) endpoints(ctx context.Context, network string) ([]Endpoint, error) {
	ids, err := d.calls.endpointIDs(ctx, network)
	if err != nil {
		return nil, err
	}
	all := make([]Endpoint, 0, len(ids))
	for _, id := range ids {
		e, ok := d.table.known(id)
		if !ok {
			if e, err = d.calls.endpoint(ctx, id); notFound(err) {
				continue
			} else if err != nil {
				return nil, err
			}
		}
		all = append(all, e)
	}
	return all, nil
}

// listAgain is how often a list is tried anew when one of its objects vanished
// while it was read: then hcsshim returns nothing of it.
const listAgain = 3

func (d *Driver) listBalancers(ctx context.Context) (all []LoadBalancer, err error) {
	for range listAgain {
		if all, err = d.calls.balancers(ctx); !notFound(err) {
			break
		}
	}
	return all, err
}

// objects returns what of the table is ours.
func (d *Driver) objects() map[Key]Value {
	t := d.table
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[Key]Value, len(t.endpoints)+len(t.balancers))
	for f, a := range t.facts.node {
		all[nodeAddress(model.Family(f))] = Value{Node: a}
	}
	for _, e := range t.endpoints {
		if k, ok := ours(e); ok {
			all[k] = readEndpoint(t.facts, k, e)
		}
	}
	for k := range d.borrowed {
		if _, ok := t.find(Target{Addr: k.Addr}); ok {
			all[k] = Value{}
		}
	}
	for k, have := range t.balancers {
		if have.single && d.journal.owns(have.lb.ID) {
			all[k] = t.readBalancer(t.facts, k, have.lb)
		}
	}
	return all
}
