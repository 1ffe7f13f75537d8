package relay

import (
	"io"
	"net"
	"sync"
	"syscall"
)

// zeroCopy says that net.TCPConn.ReadFrom splices.
const zeroCopy = true

func readers() (stream, datagrams newReader) { return newBare, newBare }

// bare reads from a socket without a buffer of its own: it takes one of the
// server's when there is something to read.
type bare struct {
	raw  syscall.RawConn
	pool *sync.Pool            // of *[]byte
	try  func(fd uintptr) bool // made once
	data *[]byte               // after a read that went well
	n    int
	err  error
}

func newBare(c net.Conn, pool *sync.Pool) (reader, error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &bare{raw: raw, pool: pool}
	r.try = r.read
	return r, nil
}

// read tries to read, and reports whether that is settled.
func (r *bare) read(fd uintptr) bool {
	data := r.pool.Get().(*[]byte)
	for {
		r.n, r.err = syscall.Read(int(fd), *data)
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

func (r *bare) next() ([]byte, error) {
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
	return (*r.data)[:r.n], err
}

func (r *bare) done() {
	if r.data != nil {
		r.pool.Put(r.data)
		r.data = nil
	}
}
