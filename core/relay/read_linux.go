// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"io"
	"net"
	"sync"
	"syscall"
)

// pooledDatagrams reports whether UDP sessions take their buffers from a pool.
const pooledDatagrams = true

func systemReaders() (stream, datagrams newReader) { return newPooledReader, newPooledReader }

// pooledReader has no buffer of its own: it takes one of the pool when there is
// something to read, so that an idle connection holds none.
type pooledReader struct {
	raw  syscall.RawConn
	pool *sync.Pool            // of *[]byte
	try  func(fd uintptr) bool // r.read, bound once
	data *[]byte               // after a read without error
	n    int
	err  error
}

func newPooledReader(c net.Conn, pool *sync.Pool) (reader, error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &pooledReader{raw: raw, pool: pool}
	r.try = r.read
	return r, nil
}

// read tries to read. It returns false to be called again when there is data.
func (r *pooledReader) read(fd uintptr) bool {
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

func (r *pooledReader) next() ([]byte, error) {
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

func (r *pooledReader) done() {
	if r.data != nil {
		r.pool.Put(r.data)
		r.data = nil
	}
}
