// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Conn is a connection to the kernel. One goroutine may use it at a time, from
// any thread. What the end of a context cuts off may have been done.
type Conn struct {
	socket *netlink.Socket
	batch  netlink.Batch
}

// Open connects to the network namespace of the calling thread.
func Open() (*Conn, error) {
	socket, err := netlink.Open()
	if err != nil {
		return nil, fmt.Errorf("ipset: %w", err)
	}
	return &Conn{socket: socket}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.socket.Close() }

// Create creates an empty set; ErrExists if the name is taken.
func (c *Conn) Create(ctx context.Context, s Set) error {
	return c.request(ctx, cmdCreate, netlink.FlagAck|netlink.FlagExclusive, s.familyOf(), "create "+s.Name, func(w writer) { w.create(s) }, nil)
}

// Destroy deletes a set that no rule uses.
func (c *Conn) Destroy(ctx context.Context, name string) error {
	return c.command(ctx, cmdDestroy, "destroy", name)
}

// Swap exchanges the names of two sets. Rules keep referring to the name.
func (c *Conn) Swap(ctx context.Context, a, b string) error {
	return c.command(ctx, cmdSwap, "swap", a, b)
}

func (c *Conn) command(ctx context.Context, cmd byte, what string, names ...string) error {
	return c.request(ctx, cmd, netlink.FlagAck, 0, what+" "+names[0], func(w writer) { w.names(names...) }, nil)
}

// request sends one message and waits for its result, or all of a dump.
func (c *Conn) request(ctx context.Context, cmd byte, flags uint16, family byte, what string, fill func(writer), each func(netlink.Message) error) error {
	err := c.socket.Request(ctx, messageType(cmd), flags, family, func(w *netlink.Writer) { fill(writer{w}) }, each)
	if err != nil {
		return fmt.Errorf("ipset %s: %w", what, explain(err))
	}
	return nil
}

// Apply makes changes in their order and returns one result for each.
func (c *Conn) Apply(ctx context.Context, changes []Change) []error {
	errs := make([]error, len(changes))
	for done := 0; done < len(changes); {
		n := 0
		for n < len(changes)-done && !c.batch.Full() {
			changes[done+n].add(&c.batch)
			n++
		}
		err := c.socket.Exchange(ctx, &c.batch, func(i int, err error) { errs[done+i] = failure(changes[done+i], explain(err)) })
		if err != nil {
			for i := done; i < len(errs); i++ {
				errs[i] = failure(changes[i], err)
			}
			return errs
		}
		done += n
	}
	return errs
}

func failure(c Change, err error) error { return fmt.Errorf("ipset %s: %w", c.Set, err) }

// explain turns ipset's error numbers into its errors; others stay unchanged.
func explain(err error) error {
	if errno, is := errors.AsType[unix.Errno](err); is {
		if known := errorOf(int(errno)); known != nil {
			return known
		}
	}
	return err
}

// List returns a set and its entries, in no order. The error is ErrNotFound if
// there is none of that name.
func (c *Conn) List(ctx context.Context, name string) (s Set, entries []Entry, err error) {
	err = c.request(ctx, cmdList, netlink.FlagDump, 0, "list "+name, func(w writer) { w.names(name) }, func(m netlink.Message) error {
		entries = decode(m, &s, entries)
		return nil
	})
	if err != nil {
		return Set{}, nil, err
	}
	return s, entries, nil
}
