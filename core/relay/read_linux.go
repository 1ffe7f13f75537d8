package relay

import (
	"io"
	"net"
	"sync"
	"syscall"
)

// zeroCopy says that net.TCPConn.ReadFrom splices.
const zeroCopy = true

// reader reads from a socket without a buffer of its own: it takes one of the
// server's when there is something to read.
type reader struct {
	raw  syscall.RawConn
	pool *sync.Pool            // of *[chunk]byte
	try  func(fd uintptr) bool // made once
	data *[chunk]byte          // after a read that went well
	n    int
	err  error
}

func newReader(c net.Conn, pool *sync.Pool) (*reader, error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &reader{raw: raw, pool: pool}
	r.try = r.read
	return r, nil
}

// newDatagramReader is the same: a buffer holds any datagram.
func newDatagramReader(c net.Conn, pool *sync.Pool) (*reader, error) { return newReader(c, pool) }

// read tries to read, and reports whether that is settled.
func (r *reader) read(fd uintptr) bool {
	data := r.pool.Get().(*[chunk]byte)
	for {
		r.n, r.err = syscall.Read(int(fd), data[:])
		if r.err != syscall.EINTR {
			break
		}
	}
	if r.err != nil {
		r.pool.Put(data)
		return r.err != syscall.EAGAIN
	}
	r.data = data
	return true
}

// next waits for data. The caller gives it back with done, and reads nothing
// before. io.EOF is the end of a stream; a datagram may be empty, too. Deadlines
// of the connection hold.
func (r *reader) next() ([]byte, error) {
	err := r.raw.Read(r.try)
	if err == nil {
		err = r.err
	}
	if err != nil {
		return nil, err
	}
	if r.n == 0 {
		err = io.EOF
	}
	return r.data[:r.n], err
}

func (r *reader) done() {
	if r.data != nil {
		r.pool.Put(r.data)
		r.data = nil
	}
}
