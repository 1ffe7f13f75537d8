package ipset

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a connection to the kernel. One goroutine may use it at a time, from
// any thread.
type Conn struct {
	fd  int
	seq uint32
	buf []byte
	w   writer
}

// patience is how long an answer may take. The kernel gives all of them in the
// sender's own time, so one that is late is one that was lost.
const patience = 10

// Open connects to the network namespace of the calling thread.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("ipset: open netlink socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("ipset: set up netlink socket: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // errors without the message
	return &Conn{fd: fd, seq: uint32(time.Now().Unix()), buf: make([]byte, 1<<16)}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Create makes an empty set. The error is ErrExists if the name is taken.
func (c *Conn) Create(s Set) error {
	return c.one("create "+s.Name, func(seq uint32) { c.w.create(s, seq) })
}

// Destroy deletes a set that no rule uses.
func (c *Conn) Destroy(name string) error { return c.command("destroy", cmdDestroy, name) }

// Flush deletes all entries of a set.
func (c *Conn) Flush(name string) error { return c.command("flush", cmdFlush, name) }

// Swap exchanges the names of two sets. Rules go on with the name.
func (c *Conn) Swap(a, b string) error { return c.command("swap", cmdSwap, a, b) }

func (c *Conn) command(what string, cmd byte, names ...string) error {
	return c.one(what+" "+names[0], func(seq uint32) { c.w.named(cmd, flagAck, seq, names...) })
}

// one sends one message and waits for its result.
func (c *Conn) one(what string, write func(seq uint32)) error {
	c.seq++
	c.w.buf = c.w.buf[:0]
	write(c.seq)
	var failed error
	err := c.exchange(c.seq, func(_ uint32, err error) { failed = err })
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("ipset %s: %w", what, err)
	}
	return nil
}

// batch is how many changes are sent at once. Errors take more room in the
// socket's buffer than the changes.
const batch = 128

// Apply makes changes in their order and returns one result for each.
func (c *Conn) Apply(ctx context.Context, changes []Change) []error {
	errs := make([]error, len(changes))
	for done := 0; done < len(changes); {
		n := min(batch, len(changes)-done)
		err := ctx.Err()
		if err == nil {
			err = c.apply(changes[done:done+n], errs[done:done+n])
		}
		for i := done; err != nil && i < len(errs); i++ {
			errs[i] = fmt.Errorf("ipset %s: %w", changes[i].Set, err)
		}
		if err != nil {
			return errs
		}
		done += n
	}
	return errs
}

func (c *Conn) apply(changes []Change, errs []error) error {
	c.w.buf = c.w.buf[:0]
	first := c.seq + 1
	for _, change := range changes {
		c.seq++
		c.w.change(change, c.seq)
	}
	c.w.acknowledge()
	return c.exchange(c.seq, func(seq uint32, err error) {
		if i := seq - first; i < uint32(len(errs)) && err != nil {
			errs[i] = fmt.Errorf("ipset %s: %w", changes[i].Set, err)
		}
	})
}

// exchange sends what is written and hands over results up to that of the last
// message. An error is one of the socket.
func (c *Conn) exchange(last uint32, result func(seq uint32, err error)) error {
	if _, err := unix.Write(c.fd, c.w.buf); err != nil {
		return err
	}
	return c.read(func(m message) bool {
		if m.kind != unix.NLMSG_ERROR || len(m.body) < 4 {
			return false
		}
		result(m.seq, errorOf(m.body))
		return m.seq == last
	})
}

// read reads messages until done says that was all.
func (c *Conn) read(done func(message) bool) error {
	for {
		n, err := unix.Read(c.fd, c.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for m, err := range messages(c.buf[:n]) {
			if err != nil {
				return err
			}
			if done(m) {
				return nil
			}
		}
	}
}

func errorOf(body []byte) error {
	errno := int(-int32(binary.NativeEndian.Uint32(body)))
	if errno == 0 {
		return nil
	}
	if err := explain(errno); err != nil {
		return err
	}
	return unix.Errno(errno)
}

// List returns a set and its entries, in no order. The error is ErrNotFound if
// there is none of that name.
func (c *Conn) List(name string) (s Set, entries []Entry, err error) {
	c.seq++
	c.w.buf = c.w.buf[:0]
	c.w.named(cmdList, flagDump, c.seq, name)
	if _, err := unix.Write(c.fd, c.w.buf); err != nil {
		return s, nil, fmt.Errorf("ipset list %s: %w", name, err)
	}
	var failed error
	err = c.read(func(m message) bool {
		switch {
		case m.seq != c.seq:
			return false
		case m.kind == unix.NLMSG_DONE || m.kind == unix.NLMSG_ERROR:
			if len(m.body) >= 4 {
				failed = errorOf(m.body)
			}
			return true
		}
		entries = decode(m.body, &s, entries)
		return false
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return s, nil, fmt.Errorf("ipset list %s: %w", name, err)
	}
	return s, entries, nil
}
