package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Driver applies objects to the kernel (dataplane.Driver). It touches only what
// is ours: virtual servers with our flag, our sets and chains, kube-ipvs0. One
// goroutine may use it at a time but for Observe, from any thread.
//
// A destination that is deleted is gone for the ledger, but drains: see drains.
type Driver struct {
	options Options
	marks   marks
	numbers *numbers
	exclude []netip.Prefix
	kernel  *kernel // for Commit
	reader  *kernel // for Observe
	tables  *tables
	drains  *drains
	again   again
}

var (
	_ dataplane.Driver[Key, Value]   = (*Driver)(nil)
	_ dataplane.Compiler[Key, Value] = (*Compiler)(nil)
)

// Open returns a driver for the network namespace of the calling thread. Virtual
// servers of others inside of exclude are never touched. Close it after use; what
// it has programmed stays.
func Open(o Options, exclude []netip.Prefix, c *xtables.Commands) (*Driver, error) {
	d := &Driver{options: o, marks: marksFor(o.Mark), numbers: &numbers{numbering: newNumbering()}, exclude: exclude}
	var errs [4]error
	var other *kernel
	d.kernel, errs[0] = connect()
	d.reader, errs[1] = connect()
	other, errs[2] = connect()
	d.tables, errs[3] = openTables(c)
	if other != nil {
		d.drains = startDrains(other, d.service)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close implements dataplane.Driver. Draining destinations stay as they are;
// the next driver goes on with them.
func (d *Driver) Close() error {
	if d.drains != nil {
		d.drains.stop()
	}
	for _, k := range []*kernel{d.kernel, d.reader} {
		if k != nil {
			k.close()
		}
	}
	if d.tables != nil {
		return d.tables.close()
	}
	return nil
}

// Limits implements dataplane.Driver.
func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{} }

// kernel are the sockets of one goroutine.
type kernel struct {
	ipvs  *ipvs.Handle
	links *netlink.Handle
	sets  *ipset.Conn
}

func connect() (*kernel, error) {
	k := &kernel{}
	var errs [3]error
	k.ipvs, errs[0] = ipvs.New("")
	k.links, errs[1] = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_INET_DIAG)
	k.sets, errs[2] = ipset.Open()
	if err := errors.Join(errs[:]...); err != nil {
		k.close()
		return nil, fmt.Errorf("ipvs: open netlink sockets: %w", err)
	}
	return k, nil
}

func (k *kernel) close() {
	if k.ipvs != nil {
		k.ipvs.Close()
	}
	if k.links != nil {
		k.links.Close()
	}
	if k.sets != nil {
		_ = k.sets.Close() // nothing is buffered in it
	}
}

// Commit implements dataplane.Driver: op by op, but neighbours of a kind that
// can be written together are.
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	errs := make([]error, len(ops))
	c := commit{Driver: d, ctx: ctx, ops: ops, gone: map[Key]bool{}, unmade: map[Key]bool{}}
	for _, op := range ops {
		if op.Verb == ledger.Delete && op.Key.Kind == KindServer {
			c.gone[op.Key] = true
		}
	}
	for i := 0; i < len(ops); {
		n := 1
		for i+n < len(ops) && together(ops[i].Key.Kind) != 0 && together(ops[i+n].Key.Kind) == together(ops[i].Key.Kind) {
			n++
		}
		c.apply(ops[i:i+n], errs[i:i+n])
		i += n
	}
	return errs
}

// commit is one Commit.
type commit struct {
	*Driver
	ctx context.Context
	ops []ledger.Op[Key, Value]

	gone   map[Key]bool // servers that are deleted, with all that they have
	unmade map[Key]bool // servers that could not be made or changed

	wanted map[Key]map[netip.AddrPort]bool // destinations by server; made by takeOver, where it is needed
}

func (c *commit) apply(ops []ledger.Op[Key, Value], errs []error) {
	if err := c.ctx.Err(); err != nil {
		fill(errs, err)
		return
	}
	switch together(ops[0].Key.Kind) {
	case 1:
		c.entries(ops, errs)
	case 2:
		c.tables.apply(c.ctx, ops, errs)
	default:
		if err := c.one(ops[0]); err != nil {
			errs[0] = fmt.Errorf("ipvs: %w", err)
		}
	}
}

func fill(errs []error, err error) {
	for i := range errs {
		errs[i] = err
	}
}

func (c *commit) one(op ledger.Op[Key, Value]) error {
	switch op.Key.Kind {
	case KindLink:
		return c.kernel.link(op.Verb)
	case KindRule:
		return c.kernel.rule(op.Verb, op.Key.Family, cmp.Or(op.Key.Mark, c.marks.claimed))
	case KindRoute:
		return c.kernel.route(op.Verb, op.Key.At.Addr())
	case KindSet:
		return c.kernel.set(op.Verb, definition(op.Key))
	case KindAddress:
		if op.Verb == ledger.Replace {
			return c.kernel.undivert(op.Key.At.Addr(), op.Old.Source)
		}
		return c.kernel.address(op.Verb, op.Key.At.Addr())
	case KindServer:
		err := c.server(op)
		if err != nil {
			c.unmade[op.Key] = true
		}
		return err
	case KindDest:
		return c.dest(op)
	}
	return fmt.Errorf("%s: unknown kind of object", op.Key)
}

// entries writes entries of sets in one go.
func (c *commit) entries(ops []ledger.Op[Key, Value], errs []error) {
	changes := make([]ipset.Change, 0, len(ops))
	places := make([]int, 0, len(ops))
	for i, op := range ops {
		change := ipset.Change{
			Set: op.Key.Set.Name(op.Key.Family), Entry: entryOf(op.Key),
			Delete: op.Verb == ledger.Delete, Net: op.Key.Set.kind() == hashNet,
		}
		if op.Key.Set.marks() && !change.Delete {
			m, err := c.numbers.mark(c.marks, op.Key, op.New)
			if err != nil {
				errs[i] = err
				continue
			}
			change.Entry.Mark, change.Entry.MarkMask = m.Bits, m.Mask
		}
		changes, places = append(changes, change), append(places, i)
	}
	for i, err := range c.kernel.sets.Apply(c.ctx, changes) {
		if changes[i].Delete && errors.Is(err, ipset.ErrNotFound) {
			err = nil // the set is gone, and the entry with it
		}
		errs[places[i]] = err
	}
}
