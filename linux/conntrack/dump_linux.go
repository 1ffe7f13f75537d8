package conntrack

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// errNoFilter means that the kernel cannot filter dumps as it was asked to.
	errNoFilter = errors.New("the kernel does not filter dumps of the table")

	// errInterrupted means that a dump may lack entries.
	errInterrupted = errors.New("the table changed while it was dumped")
)

// dump calls each for all entries that the kernel sends for a filter. An entry is
// valid during the call.
func (t *Table) dump(f filter, each func(*entry)) error {
	if err := t.drain(); err != nil {
		return err
	}
	seq := t.dumps.next()
	if err := t.dumps.send(t.dumpRequest(nil, seq, f)); err != nil {
		return fmt.Errorf("send dump request: %w", err)
	}
	t.unfinished = true
	var e entry   // here, so that it is allocated once
	var odd error // the last entry that could not be read; the others count nevertheless
	end, interrupted, err := readDump(t.dumps.receive, seq, func(m message) error {
		var err error
		if e, err = parseEntry(m.body); err != nil {
			odd = err
			return nil
		}
		if t.canFilter && !f.fits(e.flow) {
			return errNoFilter // before Linux 5.8: the filter is not even seen
		}
		each(&e)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read dump: %w", err)
	}
	t.unfinished = false
	switch err := end.err(); {
	case t.canFilter && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)):
		return errNoFilter
	case errors.Is(err, unix.EINTR) || err == nil && interrupted:
		return errInterrupted
	case err != nil:
		return fmt.Errorf("dump: %w", err)
	}
	return odd
}

// drain reads what is left of a dump that was given up: the kernel starts no
// other one on a socket before.
func (t *Table) drain() error {
	if !t.unfinished {
		return nil
	}
	_, _, err := readDump(t.dumps.receive, t.dumps.seq, func(message) error { return nil })
	t.unfinished = err != nil
	return err
}
