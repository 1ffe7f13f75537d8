package relay

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// small is the buffer of a stream that has nothing to say.
const small = 2 << 10

// reader reads from a connection. It is used by one goroutine.
type reader interface {
	// next waits for data, which is valid until done. io.EOF is the end of a
	// stream; a datagram may be empty, too.
	next() ([]byte, error)
	done()
}

// newReader makes a reader that may use buffers of the pool, which are *[]byte.
type newReader func(c net.Conn, pool *sync.Pool) (reader, error)

// portable reads a stream with a small buffer of its own, and with one of the
// server's as long as data comes faster than that. Any system can do that.
type portable struct {
	conn net.Conn
	pool *sync.Pool // of *[]byte
	own  []byte
	big  *[]byte
}

func newPortable(c net.Conn, pool *sync.Pool) (reader, error) {
	return &portable{conn: c, pool: pool, own: make([]byte, small)}, nil
}

// newPortableDatagrams has room for any datagram: what does not fit is lost.
func newPortableDatagrams(c net.Conn, _ *sync.Pool) (reader, error) {
	return &portable{conn: c, own: make([]byte, datagram)}, nil
}

func (r *portable) next() ([]byte, error) {
	if r.big != nil {
		if data, err := r.fast(); !errors.Is(err, os.ErrDeadlineExceeded) {
			return data, err
		}
	}
	n, err := r.conn.Read(r.own)
	if n == small {
		r.big = r.pool.Get().(*[]byte)
	}
	return r.own[:n], err
}

// fast reads with a big buffer, and gives it back when nothing comes.
func (r *portable) fast() ([]byte, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(stall)); err != nil {
		return nil, err
	}
	n, err := r.conn.Read(*r.big)
	if err == nil {
		return (*r.big)[:n], nil
	}
	r.pool.Put(r.big)
	r.big = nil
	if late := r.conn.SetReadDeadline(time.Time{}); late != nil {
		return nil, late
	}
	return nil, err
}

func (r *portable) done() {}
