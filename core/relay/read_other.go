//go:build !linux

package relay

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// zeroCopy says that net.TCPConn.ReadFrom moves data within the kernel.
const zeroCopy = false

// small is the buffer of a stream that has nothing to say.
const small = 2 << 10

// reader reads a stream with a small buffer of its own, and with one of the
// server's as long as data comes faster than that.
type reader struct {
	conn net.Conn
	pool *sync.Pool // of *[chunk]byte
	own  []byte
	big  *[chunk]byte
}

func newReader(c net.Conn, pool *sync.Pool) (*reader, error) {
	return &reader{conn: c, pool: pool, own: make([]byte, small)}, nil
}

// newDatagramReader has room for any datagram: what does not fit is lost.
func newDatagramReader(c net.Conn, _ *sync.Pool) (*reader, error) {
	return &reader{conn: c, own: make([]byte, chunk)}, nil
}

// next waits for data, which is valid until the next call. io.EOF is the end of a
// stream. Deadlines of the connection hold where no big buffer is in use.
func (r *reader) next() ([]byte, error) {
	if r.big != nil {
		if data, err := r.fast(); !errors.Is(err, os.ErrDeadlineExceeded) {
			return data, err
		}
	}
	n, err := r.conn.Read(r.own)
	if n == small {
		r.big = r.pool.Get().(*[chunk]byte)
	}
	return r.own[:n], err
}

// fast reads with a big buffer, and gives it back when nothing comes.
func (r *reader) fast() ([]byte, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(stall)); err != nil {
		return nil, err
	}
	n, err := r.conn.Read(r.big[:])
	if err == nil {
		return r.big[:n], nil
	}
	r.pool.Put(r.big)
	r.big = nil
	return nil, errors.Join(err, r.conn.SetReadDeadline(time.Time{}))
}

func (r *reader) done() {}
