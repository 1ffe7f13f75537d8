package conntrack

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// flush deletes the entries of the batch and empties it. One that cannot be
// deleted does not keep the others.
func (t *Table) flush() (deleted int, err error) {
	if t.batch.n == 0 {
		return 0, nil
	}
	defer t.batch.reset()
	if err := t.deletes.send(t.batch.finish()); err != nil {
		return 0, fmt.Errorf("send delete requests: %w", err)
	}
	deleted = t.batch.n
	for done := false; !done; {
		b, errRecv := t.deletes.receive()
		if errRecv != nil {
			return 0, fmt.Errorf("receive answers to delete requests: %w", errRecv)
		}
		for len(b) > 0 && !done {
			var m message
			if m, b, errRecv = nextMessage(b); errRecv != nil {
				return 0, errRecv
			}
			i, ours := t.batch.index(m.seq)
			if !ours || m.typ != msgError {
				continue // a late answer to a batch that was given up
			}
			if e := m.err(); e != nil {
				deleted--
				if !errors.Is(e, unix.ENOENT) { // else it is gone already, or made anew
					err = fmt.Errorf("delete entry: %w", e)
				}
			}
			done = i == t.batch.n-1
		}
	}
	return deleted, err
}

// err returns the error that a message of type msgError or msgDone tells.
func (m message) err() error {
	code, err := m.errno()
	switch {
	case err != nil:
		return err
	case code > 0:
		return unix.Errno(code)
	}
	return nil
}
